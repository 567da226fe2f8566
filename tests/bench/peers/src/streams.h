// The engine's connections, and its running streams: a heap of those with a pace, a list of those without.
#ifndef STREAMS_H
#define STREAMS_H
#include "common.h"

struct connection {
  int fd, heap_at, ready_at;
  bool open, watches_output, streaming, closes, in_body;
  struct body body;
  char *in, *kept, *out;
  size_t in_bytes, in_room, head_bytes, kept_bytes, out_bytes, out_done, out_room;
  long tokens_left;
  uint64_t fill_bytes;  // of a large answer, not sent yet
  uint64_t next_ns;
};

static struct connection **heap, **ready;  // by next_ns; whose socket takes more
static int heap_count, heap_room, ready_count, ready_room;

static void place(struct connection* c, int at) {
  heap[at] = c;
  c->heap_at = at;
}

static void sift(int at) {
  struct connection* c = heap[at];
  for (; at && c->next_ns < heap[(at - 1) / 2]->next_ns; at = (at - 1) / 2) place(heap[(at - 1) / 2], at);
  for (;;) {
    int child = 2 * at + 1;
    if (child + 1 < heap_count && heap[child + 1]->next_ns < heap[child]->next_ns) child++;
    if (child >= heap_count || heap[child]->next_ns >= c->next_ns) break;
    place(heap[child], at);
    at = child;
  }
  place(c, at);
}

static void add(struct connection*** list, int* count, int* room, struct connection* c) {
  if (*count == *room) {
    *room = *room ? *room * 2 : 1024;
    *list = grown(*list, *room * sizeof **list);
  }
  (*list)[(*count)++] = c;
}

static void push_heap(struct connection* c) {
  add(&heap, &heap_count, &heap_room, c);
  c->heap_at = heap_count - 1;
  sift(c->heap_at);
}

static void leave_heap(struct connection* c) {
  int at = c->heap_at;
  if (at < 0) return;
  c->heap_at = -1;
  if (at != --heap_count) {
    place(heap[heap_count], at);
    sift(at);
  }
}

static void push_ready(struct connection* c) {
  if (c->ready_at >= 0) return;
  c->ready_at = ready_count;
  add(&ready, &ready_count, &ready_room, c);
}

static void leave_ready(struct connection* c) {
  int at = c->ready_at;
  if (at < 0) return;
  c->ready_at = -1;
  if (at != --ready_count) {
    ready[at] = ready[ready_count];
    ready[at]->ready_at = at;
  }
}

#endif
