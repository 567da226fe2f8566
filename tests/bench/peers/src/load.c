// A load generator that costs next to nothing: one thread, one epoll. Prints one JSON object.
//
//   load unary|stream|down|up -P PORT [options]
//
//   -c N  connections                      -n N  tokens of a stream
//   -w S  warm-up                          -d S  window that counts
//   -g S  connections begin spread so      -q N  end when N answers came, whatever -w and -d say
//   -B N  bytes down or up in a request    -b N  bytes of any other request
//   -u P  path                             -m M  model
//   -a K  API key                          -H "name: value", a field more
//   -r N  open loop: Poisson arrivals, N a second
//   -p PID,…  processes whose CPU and memory are told
//
// Closed loop: each connection asks again as soon as it was answered. Open loop: times count from the
// intended arrival, also while every connection is busy. Only what comes within the window counts; CPU is
// read at its ends. A stream's answer is right when it has exactly N stamped tokens and [DONE].
#include "measures.h"
#include "plan.h"

#define ARRIVALS (1 << 20)
#define HEAD_ROOM 16384
#define RETRY_NS 10000000ull

struct connection {
  int fd, status;
  bool connected, busy, in_body, keeps, done, watches_output;
  struct body body;
  char* in;
  size_t in_bytes, in_room, to_send;
  uint64_t fill_bytes, began_ns, last_ns, body_bytes;
  long tokens;
};

static int poller;
static bool counting;
static char *request, block[BLOCK_BYTES], error_text[241];
static size_t request_bytes;
static struct sockaddr_in address;
static struct connection* connections;
static int *idle, *again, idle_count, again_count, active, peak_active;
static uint64_t answers, right, tokens, received_bytes, wrong_status, wrong_end, wrong_connection, end_ns;
static int last_status;
static struct histogram latency, first_token, gap, one_way;
static uint64_t *arrivals, arrivals_in, arrivals_out, chance = 88172645463325252ull;

static void watch_output(struct connection* c, bool wanted) {
  if (c->watches_output == wanted) return;
  c->watches_output = wanted;
  struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void disconnect(struct connection* c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  c->connected = false;
}

static void set_free(struct connection* c) {
  c->busy = false;
  active--;
  again[again_count++] = c - connections;
}

static void lost(struct connection* c) {
  disconnect(c);
  if (!c->busy) return;
  if (counting) wrong_connection++;
  set_free(c);
}

static void send_on(struct connection* c) {
  while (c->to_send || c->fill_bytes) {
    const char* from = c->to_send ? request + request_bytes - c->to_send : block;
    size_t size = c->to_send ? c->to_send : c->fill_bytes < BLOCK_BYTES ? c->fill_bytes : BLOCK_BYTES;
    ssize_t sent = send(c->fd, from, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno == EAGAIN)
        watch_output(c, true);
      else
        lost(c);
      return;
    }
    if (c->to_send)
      c->to_send -= sent;
    else
      c->fill_bytes -= sent;
  }
  watch_output(c, false);
}

static void begin_connecting(struct connection* c) {
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (c->fd < 0) return;
  without_delay(c->fd);
  if (connect(c->fd, (void*)&address, sizeof address) && errno != EINPROGRESS) {
    disconnect(c);
    return;
  }
  c->watches_output = true;
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

static void ask(struct connection* c, uint64_t began_ns) {
  if (++active > peak_active) peak_active = active;
  c->busy = true;
  c->in_body = c->done = false;
  c->tokens = c->status = c->in_bytes = 0;
  c->last_ns = c->body_bytes = 0;
  c->began_ns = began_ns;
  c->to_send = request_bytes;
  c->fill_bytes = plan.up ? plan.bytes : 0;
  if (c->fd < 0) begin_connecting(c);
  if (c->fd < 0)
    lost(c);
  else if (c->connected)
    send_on(c);
}

static void answered(struct connection* c, uint64_t now) {
  if (c->status != 200) {
    last_status = c->status;
    wrong_status += counting;
    if (!*error_text)
      for (size_t i = 0; i < c->in_bytes && i < sizeof error_text - 1; i++)
        error_text[i] = c->in[i] < ' ' || strchr("\"\\", c->in[i]) ? '\'' : c->in[i];
  } else if (
      (plan.streams && (c->tokens != plan.tokens || !c->done)) ||
      (plan.down && c->body_bytes != plan.bytes)) {
    wrong_end += counting;
  } else if (counting) {
    right++;
    record(&latency, now - c->began_ns);
  }
  answers += counting;
  if (plan.answers && answers >= plan.answers) end_ns = now;
  if (!c->keeps || c->to_send || c->fill_bytes) disconnect(c);
  set_free(c);
}

static void read_event(struct connection* c, const char* event, size_t size, uint64_t now) {
  if (size >= 12 && !memcmp(event, "data: [DONE]", 12)) c->done = true;
  const char* at = memmem(event, size, "\"t=", 3);
  uint64_t stamp = 0;
  if (!at || size - (at - event) < 3 + STAMP_DIGITS) return;
  for (int i = 0; i < STAMP_DIGITS; i++) stamp = stamp * 10 + (at[3 + i] - '0');
  c->tokens++;
  if (counting) {
    tokens++;
    record(&one_way, now > stamp ? now - stamp : 0);
    record(c->last_ns ? &gap : &first_token, now - (c->last_ns ? c->last_ns : c->began_ns));
  }
  c->last_ns = now;
}

static void keep_input(struct connection* c, const char* data, size_t size) {
  if (c->in_bytes + size > c->in_room) c->in = grown(c->in, c->in_room = (c->in_bytes + size) * 2);
  memcpy(c->in + c->in_bytes, data, size);
  c->in_bytes += size;
}

// A piece of a body: events are read, errors kept, the rest is counted.
static void read_piece(struct connection* c, const char* piece, size_t size, uint64_t now) {
  c->body_bytes += size;
  if (c->status != 200 && c->in_bytes < sizeof error_text) keep_input(c, piece, size);
  if (c->status != 200 || !plan.streams) return;
  keep_input(c, piece, size);
  size_t read = 0;
  for (char* end; (end = memmem(c->in + read, c->in_bytes - read, "\n\n", 2)); read = end + 2 - c->in)
    read_event(c, c->in + read, end - c->in - read, now);
  c->in_bytes -= read;
  memmove(c->in, c->in + read, c->in_bytes);
}

// Returns how many of the new bytes belong to the head; sets in_body once it is whole.
static size_t read_head(struct connection* c, const char* data, size_t size) {
  size_t before = c->in_bytes;
  if (before + size > HEAD_ROOM) size = HEAD_ROOM - before;
  keep_input(c, data, size);
  char* end = memmem(c->in, c->in_bytes, "\r\n\r\n", 4);
  if (!end) return size;
  size_t head = end - c->in + 4;
  c->status = atoi(c->in + 9);
  c->in_bytes = 0;
  if (c->status == 100) return head - before;
  const char* length = field(c->in, head, "content-length");
  c->body = (struct body){.at = BODY_UNTIL_END};
  c->keeps = !field_is(c->in, head, "connection", "close");
  if (field_is(c->in, head, "transfer-encoding", "chunked"))
    c->body.at = BODY_CHUNK_LINE;
  else if (length) {
    c->body.left_bytes = strtoull(length, NULL, 10);
    c->body.at = c->body.left_bytes ? BODY_SIZED : BODY_OVER;
  } else
    c->keeps = false;
  c->in_body = true;
  return head - before;
}

static void read_input(struct connection* c, const char* data, size_t size, uint64_t now) {
  while (size && c->busy) {
    const char* piece;
    size_t used, piece_bytes;
    if (c->in_body) {
      used = read_body(&c->body, data, size, &piece, &piece_bytes);
      if (piece_bytes) read_piece(c, piece, piece_bytes, now);
    } else if (!(used = read_head(c, data, size))) {
      lost(c);
      return;
    }
    data += used, size -= used;
    if (c->in_body && c->body.at == BODY_OVER) answered(c, now);
  }
}

static void receive(struct connection* c) {
  static char buffer[BLOCK_BYTES];
  ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
  if (got < 0 && try_again()) return;
  if (got > 0) {
    if (counting) received_bytes += got;
    read_input(c, buffer, got, now_ns());
  } else if (c->busy && c->in_body && c->body.at == BODY_UNTIL_END)
    answered(c, now_ns());
  else
    lost(c);
}

static void connected(struct connection* c) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error)
    lost(c);
  else {
    c->connected = true;
    send_on(c);
  }
}

// --- when to ask ---

static double next_chance(void) {
  chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
  return (chance >> 11) * (1.0 / 9007199254740992.0);
}

// Give the requests that are due to connections that are free. Returns when the next one is due.
static uint64_t ask_those_due(uint64_t now, uint64_t began_ns) {
  static int started;
  static uint64_t due_ns;
  int freed = again_count;
  again_count = 0;
  for (int i = 0; i < freed; i++) {
    if (plan.rate > 0)
      idle[idle_count++] = again[i];
    else
      ask(&connections[again[i]], now);
  }
  if (plan.rate <= 0) {
    uint64_t spread_ns = plan.ramp_s * 1e9 / plan.connections;
    while (started < plan.connections && began_ns + started * spread_ns <= now)
      ask(&connections[started++], now);
    return started < plan.connections ? began_ns + started * spread_ns : UINT64_MAX;
  }
  for (; started < plan.connections; started++) idle[idle_count++] = started;
  for (due_ns = due_ns ? due_ns : began_ns; due_ns <= now;
       due_ns += -log(1 - next_chance()) / plan.rate * 1e9 + 1)
    if (arrivals_in - arrivals_out < ARRIVALS) arrivals[arrivals_in++ % ARRIVALS] = due_ns;
  while (idle_count && arrivals_out < arrivals_in)
    ask(&connections[idle[--idle_count]], arrivals[arrivals_out++ % ARRIVALS]);
  return due_ns;
}

static void poll_until(uint64_t then_ns) {
  static struct epoll_event events[2048];
  uint64_t now = now_ns();
  uint64_t wait_ns = then_ns > now ? then_ns - now : 0;
  if (again_count && wait_ns > RETRY_NS) wait_ns = RETRY_NS;
  struct timespec wait = timespec_of(wait_ns);
  int happened = epoll_pwait2(poller, events, 2048, &wait, NULL);
  for (int i = 0; i < happened; i++) {
    struct connection* c = events[i].data.ptr;
    if (c->fd >= 0 && !c->connected)
      connected(c);
    else if (c->fd >= 0 && events[i].events & EPOLLOUT)
      send_on(c);
    if (c->fd >= 0 && c->connected && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
  }
}

// --- the whole ---

static void write_request(void) {
  char* body = grown(NULL, plan.request_bytes + 1024);
  int size = 0;
  if (!plan.down && !plan.up) {
    size = sprintf(
        body,
        "{\"model\":\"%s\",\"max_tokens\":%d,\"stream\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"",
        plan.model, plan.tokens, plan.streams ? "true" : "false");
    for (; size < plan.request_bytes - 4; size++) body[size] = size % 6 == 5 ? ' ' : 'a' + size * 5 % 26;
    size += sprintf(body + size, "\"}]}");
  }
  uint64_t length = plan.up ? plan.bytes : (uint64_t)size;
  request = grown(NULL, size + 8192);
  request_bytes = sprintf(
      request,
      "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/%s\r\nAccept: */*\r\n"
      "Authorization: Bearer %s\r\n%sContent-Length: %lu\r\n\r\n",
      plan.down ? "GET" : "POST", plan.path, plan.port, plan.up ? "octet-stream" : "json", plan.key,
      plan.fields, length);
  memcpy(request + request_bytes, body, size);
  request_bytes += size;
  free(body);
}

static void set_up(void) {
  set_up_process();
  memset(block, 'x', sizeof block);
  address = loopback(plan.port);
  poller = epoll_create1(0);
  connections = calloc(plan.connections, sizeof *connections);
  idle = calloc(plan.connections, sizeof *idle);
  again = calloc(plan.connections + 1, sizeof *again);
  arrivals = plan.rate > 0 ? calloc(ARRIVALS, sizeof *arrivals) : NULL;
  for (int i = 0; i < plan.connections; i++) connections[i].fd = -1;
  write_request();
}

static void report(double seconds, const struct use* before, const struct use* after, double own_s) {
  printf(
      "{\"seconds\":%.4f,\"answers\":%lu,\"right\":%lu,\"tokens\":%lu,\"received_bytes\":%lu,\"peak_active\":"
      "%d,",
      seconds, answers, right, tokens, received_bytes, peak_active);
  printf(
      "\"errors\":{\"status\":%lu,\"short\":%lu,\"connection\":%lu},\"last_status\":%d,\"error_text\":\"%"
      "s\",",
      wrong_status, wrong_end, wrong_connection, last_status, error_text);
  print_histogram("latency_us", &latency);
  print_histogram("first_token_us", &first_token);
  print_histogram("gap_us", &gap);
  print_histogram("one_way_us", &one_way);
  printf("\"own_cores\":%.3f,\"processes\":{", own_s / seconds);
  for (int i = 0; i < plan.pid_count; i++)
    printf(
        "%s\"%d\":{\"user_s\":%.3f,\"system_s\":%.3f,\"rss_bytes\":%ld,\"peak_rss_bytes\":%ld}", i ? "," : "",
        plan.pids[i], after[i].user_s - before[i].user_s, after[i].system_s - before[i].system_s,
        memory_of(plan.pids[i], "VmRSS"), memory_of(plan.pids[i], "VmHWM"));
  printf("}}\n");
}

int main(int count, char** arguments) {
  struct use before[PROCESSES + 1], after[PROCESSES + 1];
  read_options(count, arguments);
  set_up();
  plan.pids[plan.pid_count] = getpid();
  uint64_t began_ns = now_ns(), window_ns = began_ns + (uint64_t)(plan.warm_s * 1e9);
  end_ns = window_ns + (uint64_t)(plan.window_s * 1e9);
  for (uint64_t now = began_ns; now < end_ns; now = now_ns()) {
    if (!counting && now >= window_ns) {
      for (int i = 0; i <= plan.pid_count; i++) before[i] = use_of(plan.pids[i]);
      counting = true;
      window_ns = now_ns();
    }
    uint64_t then_ns = ask_those_due(now, began_ns);
    uint64_t edge_ns = counting ? end_ns : window_ns;
    poll_until(then_ns < edge_ns ? then_ns : edge_ns);
  }
  double seconds = (now_ns() - window_ns) / 1e9;
  for (int i = 0; i <= plan.pid_count; i++) after[i] = use_of(plan.pids[i]);
  double own_s = after[plan.pid_count].user_s + after[plan.pid_count].system_s -
                 before[plan.pid_count].user_s - before[plan.pid_count].system_s;
  report(seconds, before, after, own_s);
  return 0;
}
