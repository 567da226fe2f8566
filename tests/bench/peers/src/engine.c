// An OpenAI-compatible engine that costs next to nothing: one thread, one epoll.
//
//   engine PORT                     prints "listening http://127.0.0.1:PORT"; 0 is any free port
//
// POST …                            a chat: plain, or with "stream":true "max_tokens" tokens, a write() each;
//                                   a body beyond 64 KiB is read and dropped
// GET …/body?bytes=N                N bytes
// GET /v1/models                    the model fake-llm; at /m/NAME/v1/models also NAME
// GET /_control?…                   takes interval_us and step (0 or 1), tells "active"
//
// interval_us=0: a token for each stream whose socket takes it, in turns. Otherwise each stream ticks from
// its own start on, or, with step=1, all together, as a batching engine's step gives a token to every running
// sequence. A token's text is "t=" and CLOCK_MONOTONIC in 19 digits of nanoseconds, right before its write().
#include "streams.h"
#include "texts.h"

#define KEPT_BYTES 65536
#define HEAD_BYTES 32768

static int poller;
static uint64_t interval_ns;
static bool in_step;
static struct connection** dead;  // closed in this turn
static int dead_count, dead_room;
// --- writing ---

static void watch_output(struct connection* c, bool wanted) {
  if (c->watches_output == wanted) return;
  c->watches_output = wanted;
  struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void shut(struct connection* c) {
  if (!c->open) return;
  c->open = false;
  leave_heap(c);
  leave_ready(c);
  close(c->fd);
  add(&dead, &dead_count, &dead_room, c);
}

static bool all_sent(struct connection* c) { return c->out_bytes == c->out_done && !c->fill_bytes; }

// True if the socket took all of it; what it did not take is sent later. May close the connection.
static bool put(struct connection* c, const char* data, size_t size) {
  while (all_sent(c)) {
    ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
    if (sent == (ssize_t)size) return true;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) {
      shut(c);
      return false;
    }
    if (sent > 0) data += sent, size -= sent;
    break;
  }
  if (c->out_bytes == c->out_done) c->out_bytes = c->out_done = 0;
  if (c->out_bytes + size > c->out_room) c->out = grown(c->out, c->out_room = (c->out_bytes + size) * 2);
  memcpy(c->out + c->out_bytes, data, size);
  c->out_bytes += size;
  watch_output(c, true);
  return false;
}

static void flush(struct connection* c) {
  while (c->open && !all_sent(c)) {
    bool pending = c->out_bytes > c->out_done;
    const char* from = pending ? c->out + c->out_done : block;
    size_t size = pending                       ? c->out_bytes - c->out_done
                  : c->fill_bytes < BLOCK_BYTES ? c->fill_bytes
                                                : BLOCK_BYTES;
    ssize_t sent = send(c->fd, from, size, MSG_NOSIGNAL);
    if (sent < 0) {
      if (!try_again()) shut(c);
      break;
    }
    if (pending)
      c->out_done += sent;
    else
      c->fill_bytes -= sent;
  }
  if (c->open) watch_output(c, !all_sent(c));
}

static void put_json(struct connection* c, const char* json) {
  char head[256];
  put(c, head,
      sprintf(
          head,
          "HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: application/json\r\ncontent-length: "
          "%zu\r\n\r\n",
          strlen(json)));
  if (c->open) put(c, json, strlen(json));
}

// --- answering ---

static void end_stream(struct connection* c) {
  c->streaming = false;
  leave_heap(c);
  leave_ready(c);
  put(c, ending, ending_bytes);
}

// True if more tokens may follow at once.
static bool put_token(struct connection* c) {
  uint64_t now = now_ns();
  for (int i = STAMP_DIGITS - 1; i >= 0; i--, now /= 10) stamp_at[i] = '0' + now % 10;
  c->tokens_left--;
  return put(c, token, token_bytes);
}

static long number_after(const char* text, size_t size, const char* key, long otherwise) {
  const char *at = memmem(text, size, key, strlen(key)), *end = text + size;
  if (!at) return otherwise;
  for (at += strlen(key); at < end && (*at == ' ' || *at == ':');) at++;
  return at < end && *at >= '0' && *at <= '9' ? atol(at) : otherwise;
}

static bool wants_stream(const char* body, size_t size) {
  const char *at = memmem(body, size, "\"stream\"", 8), *end = body + size;
  if (!at) return false;
  for (at += 8; at < end && (*at == ' ' || *at == ':');) at++;
  return end - at >= 4 && !memcmp(at, "true", 4);
}

static void answer_chat(struct connection* c) {
  if (!wants_stream(c->kept, c->kept_bytes)) {
    put(c, chat, chat_bytes);
    return;
  }
  long otherwise = number_after(c->kept, c->kept_bytes, "\"max_completion_tokens\"", 200);
  c->tokens_left = number_after(c->kept, c->kept_bytes, "\"max_tokens\"", otherwise);
  put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
  if (!c->open) return;
  c->streaming = true;
  if (!interval_ns) {
    push_ready(c);
    return;
  }
  c->next_ns = now_ns();
  if (in_step) c->next_ns = (c->next_ns / interval_ns + 1) * interval_ns;
  push_heap(c);
}

static void answer_models(struct connection* c, const char* path) {
  const char* entry =
      "{\"id\":\"%s\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"fake\",\"max_model_len\":"
      "32768}";
  char name[128] = "", json[1024] = "{\"object\":\"list\",\"data\":[";
  sprintf(json + strlen(json), entry, "fake-llm");
  if (sscanf(path, "/m/%127[^/]", name) == 1) {
    strcat(json, ",");
    sprintf(json + strlen(json), entry, name);
  }
  put_json(c, strcat(json, "]}"));
}

static void answer_control(struct connection* c, const char* path) {
  size_t size = strlen(path);
  interval_ns = number_after(path, size, "interval_us=", interval_ns / 1000) * 1000ull;
  in_step = number_after(path, size, "step=", in_step);
  char json[128];
  sprintf(
      json, "{\"interval_us\":%lu,\"step\":%d,\"active\":%d}", interval_ns / 1000, in_step,
      heap_count + ready_count);
  put_json(c, json);
}

static void answer(struct connection* c) {
  char method[8] = "", path[512] = "", head[160];
  sscanf(c->in, "%7s %511s", method, path);
  long bytes = number_after(path, strlen(path), "/body?bytes=", -1);
  if (bytes >= 0) {
    put(c, head,
        sprintf(
            head, "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %ld\r\n\r\n",
            bytes));
    c->fill_bytes = bytes;
    if (c->open) flush(c);
  } else if (!strcmp(method, "POST"))
    answer_chat(c);
  else if (!strncmp(path, "/_control", 9))
    answer_control(c, path);
  else if (strstr(path, "/v1/models"))
    answer_models(c, path);
  else if (strstr(path, "model_info"))
    put_json(c, "{\"model_path\":\"fake-llm\",\"tokenizer_path\":\"fake-llm\",\"is_generation\":true}");
  else if (strstr(path, "server_info"))
    put_json(
        c,
        "{\"model_id\":\"fake-llm\",\"model_path\":\"fake-llm\",\"served_model_name\":\"fake-llm\","
        "\"version\":\"0\",\"tp_size\":1,\"dp_size\":1}");
  else
    put_json(c, "{}");
}

// --- reading ---

static void drop_input(struct connection* c, size_t from, size_t size) {
  memmove(c->in + from, c->in + from + size, c->in_bytes - from - size);
  c->in_bytes -= size;
}

static bool begin_request(struct connection* c) {
  char* end = memmem(c->in, c->in_bytes, "\r\n\r\n", 4);
  if (!end) {
    if (c->in_bytes > HEAD_BYTES) shut(c);
    return false;
  }
  const char* head = c->in;
  size_t size = c->head_bytes = end - c->in + 4;
  const char* length = field(head, size, "content-length");
  c->body = (struct body){.at = BODY_OVER};
  if (length) {
    c->body.left_bytes = strtoull(length, NULL, 10);
    if (c->body.left_bytes) c->body.at = BODY_SIZED;
  } else if (field_is(head, size, "transfer-encoding", "chunked"))
    c->body.at = BODY_CHUNK_LINE;
  c->closes = field_is(head, size, "connection", "close") || memmem(head, size, "HTTP/1.0", 8);
  c->kept_bytes = 0;
  c->in_body = true;
  if (c->body.at != BODY_OVER && field(head, size, "expect")) put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
  return c->open;
}

static void read_on(struct connection* c) {
  const char* piece;
  size_t size, at = c->head_bytes;
  while (at < c->in_bytes && c->body.at != BODY_OVER) {
    at += read_body(&c->body, c->in + at, c->in_bytes - at, &piece, &size);
    if (size > KEPT_BYTES - c->kept_bytes) size = KEPT_BYTES - c->kept_bytes;
    if (size) {
      c->kept = grown(c->kept, c->kept_bytes + size);
      memcpy(c->kept + c->kept_bytes, piece, size);
      c->kept_bytes += size;
    }
  }
  drop_input(c, c->head_bytes, at - c->head_bytes);
}

// Answer as many requests as are there, one after the other.
static void serve(struct connection* c) {
  while (c->open && !c->streaming && all_sent(c)) {
    if (!c->in_body) {
      if (c->closes) {
        shut(c);
        return;
      }
      if (!c->in_bytes || !begin_request(c)) return;
    }
    read_on(c);
    if (c->body.at != BODY_OVER) return;
    c->in_body = false;
    answer(c);
    if (c->open) drop_input(c, 0, c->head_bytes);
  }
}

static void receive(struct connection* c) {
  if (c->in_room - c->in_bytes < 4096)
    c->in = grown(c->in, c->in_room = c->in_room < BLOCK_BYTES ? c->in_room * 2 : c->in_room + 4096);
  ssize_t got = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, 0);
  if (got == 0 || (got < 0 && !try_again())) shut(c);
  if (got <= 0) return;
  c->in_bytes += got;
  if (got > 2048 && c->in_room < BLOCK_BYTES && c->in_body) c->in = grown(c->in, c->in_room = BLOCK_BYTES);
  serve(c);
}

static void accept_some(int listener) {
  for (int i = 0; i < 256; i++) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    without_delay(fd);
    struct connection* c = grown(NULL, sizeof *c);
    *c = (struct connection){.fd = fd, .open = true, .heap_at = -1, .ready_at = -1, .in_room = 4096};
    c->in = grown(NULL, c->in_room);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
}

static void write_on(struct connection* c) {
  flush(c);
  if (!c->open || !all_sent(c)) return;
  if (!c->streaming)
    serve(c);
  else if (c->heap_at < 0)
    push_ready(c);
}

static void tick_unpaced(void) {
  for (int i = 0; i < ready_count;) {
    struct connection* c = ready[i];
    bool more = put_token(c);
    if (!c->open) continue;
    if (c->tokens_left <= 0) {
      end_stream(c);
      if (c->open) serve(c);
    } else if (!more)
      leave_ready(c);
    else
      i++;
  }
}

static void tick_paced(void) {
  uint64_t now = now_ns();
  for (int most = 4096; heap_count && heap[0]->next_ns <= now && most; most--) {
    struct connection* c = heap[0];
    put_token(c);
    if (!c->open) continue;
    if (c->tokens_left <= 0) {
      end_stream(c);
      if (c->open) serve(c);
      continue;
    }
    if (!interval_ns) {
      leave_heap(c);
      push_ready(c);
      continue;
    }
    c->next_ns += interval_ns;
    if (in_step) c->next_ns = c->next_ns / interval_ns * interval_ns;
    sift(0);
  }
}

static void bury(void) {
  for (; dead_count; dead_count--) {
    struct connection* c = dead[dead_count - 1];
    free(c->in), free(c->kept), free(c->out), free(c);
  }
}

static int listen_on(int port) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = loopback(port);
  socklen_t size = sizeof address;
  if (bind(listener, (void*)&address, size) || listen(listener, 4096)) {
    perror("listen");
    exit(1);
  }
  getsockname(listener, (void*)&address, &size);
  printf("listening http://127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

int main(int count, char** arguments) {
  static struct epoll_event events[1024];
  set_up_process();
  prepare();
  int listener = listen_on(count > 1 ? atoi(arguments[1]) : 0);
  poller = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  for (;;) {
    struct timespec wait = {0, 0};
    if (!ready_count && heap_count) {
      uint64_t now = now_ns();
      wait = timespec_of(heap[0]->next_ns > now ? heap[0]->next_ns - now : 0);
    }
    int happened = epoll_pwait2(poller, events, 1024, ready_count || heap_count ? &wait : NULL, NULL);
    for (int i = 0; i < happened; i++) {
      struct connection* c = events[i].data.ptr;
      if (!c) accept_some(listener);
      if (c && c->open && events[i].events & EPOLLOUT) write_on(c);
      if (c && c->open && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
    }
    tick_unpaced();
    tick_paced();
    bury();
  }
}
