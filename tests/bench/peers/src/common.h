// What the engine and the load share: clock, limits, sockets, and the fields of an HTTP/1.1 head.
#ifndef COMMON_H
#define COMMON_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define STAMP_DIGITS 19
#define BLOCK_BYTES (256 * 1024)

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static inline struct timespec timespec_of(uint64_t ns) {
  return (struct timespec){ns / SECOND_NS, ns % SECOND_NS};
}

static inline void set_up_process(void) {
  struct rlimit limit;
  signal(SIGPIPE, SIG_IGN);
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static inline void* grown(void* memory, size_t size) {
  void* more = realloc(memory, size);
  if (!more) {
    perror("realloc");
    exit(1);
  }
  return more;
}

static inline void without_delay(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline bool try_again(void) { return errno == EAGAIN || errno == EINTR; }

// The value of a field in a head that ends in a blank line, or NULL.
static inline const char* field(const char* head, size_t size, const char* name) {
  size_t name_size = strlen(name);
  const char* end = head + size;
  for (const char* line = head; line < end;) {
    const char* line_end = memchr(line, '\n', end - line);
    if (!line_end) return NULL;
    if ((size_t)(line_end - line) > name_size && line[name_size] == ':' &&
        !strncasecmp(line, name, name_size)) {
      for (line += name_size + 1; *line == ' ';) line++;
      return line;
    }
    line = line_end + 1;
  }
  return NULL;
}

static inline bool field_is(const char* head, size_t size, const char* name, const char* value) {
  const char* found = field(head, size, name);
  return found && !strncasecmp(found, value, strlen(value));
}

// Where a body is. Exactly one of content-length, chunked and "until the end" applies.
struct body {
  enum {
    BODY_SIZED,
    BODY_CHUNK_LINE,
    BODY_CHUNK,
    BODY_CHUNK_END,
    BODY_TRAILER,
    BODY_UNTIL_END,
    BODY_OVER
  } at;
  uint64_t left_bytes;  // of the body, or of the chunk
  int line_chars;       // of a trailer's line so far
  char line[32];        // a chunk's size
};

// Reads on in a body. Returns how many bytes it used; *piece, *piece_bytes are the part of the body in them.
static inline size_t read_body(
    struct body* body, const char* data, size_t size, const char** piece, size_t* piece_bytes) {
  size_t used = 0;
  *piece = NULL;
  *piece_bytes = 0;
  while (used < size && body->at != BODY_OVER) {
    char c = data[used];
    switch (body->at) {
      case BODY_SIZED:
      case BODY_CHUNK:
      case BODY_UNTIL_END: {
        size_t take = size - used;
        if (body->at != BODY_UNTIL_END) {
          if (take > body->left_bytes) take = body->left_bytes;
          body->left_bytes -= take;
          if (!body->left_bytes) body->at = body->at == BODY_SIZED ? BODY_OVER : BODY_CHUNK_END;
        }
        *piece = data + used;
        *piece_bytes = take;
        return used + take;
      }
      case BODY_CHUNK_LINE:
        if (c == '\n') {
          body->line[body->line_chars] = 0;
          body->left_bytes = strtoull(body->line, NULL, 16);
          body->at = body->left_bytes ? BODY_CHUNK : BODY_TRAILER;
          body->line_chars = 0;
        } else if (body->line_chars < (int)sizeof body->line - 1) {
          body->line[body->line_chars++] = c;
        }
        used++;
        break;
      case BODY_CHUNK_END:
        if (c == '\n') body->at = BODY_CHUNK_LINE;
        used++;
        break;
      case BODY_TRAILER:
        if (c == '\n' && !body->line_chars) body->at = BODY_OVER;
        body->line_chars = c == '\n' ? 0 : body->line_chars + (c != '\r');
        used++;
        break;
      case BODY_OVER:
        break;
    }
  }
  return used;
}

#endif
