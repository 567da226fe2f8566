// Histograms of nanoseconds, and what a process has used so far.
#ifndef MEASURES_H
#define MEASURES_H
#include "common.h"

#include <math.h>

#define STEPS 64  // buckets for each doubling: percentiles are right within 0.8 %

struct histogram {
  uint64_t buckets[64 * STEPS], count, most;
  double sum;
};

static inline void record(struct histogram* h, uint64_t value) {
  int power = value < STEPS ? 0 : 63 - __builtin_clzll(value);
  h->buckets
      [value < STEPS ? (int)value : (power - 5) * STEPS + (int)((value >> (power - 6)) & (STEPS - 1))]++;
  h->count++;
  h->sum += value;
  if (value > h->most) h->most = value;
}

// In microseconds; -1 when nothing was recorded.
static inline double percentile_us(const struct histogram* h, double share) {
  if (!h->count) return -1;
  uint64_t rank = (uint64_t)ceil(share * h->count), seen = 0;
  for (int i = 0; i < 64 * STEPS; i++) {
    seen += h->buckets[i];
    if (seen < rank) continue;
    if (i < STEPS) return i / 1e3;
    return (double)((uint64_t)(STEPS + i % STEPS) << (i / STEPS - 1)) * (1 + 0.5 / STEPS) / 1e3;
  }
  return h->most / 1e3;
}

static inline void print_histogram(const char* name, const struct histogram* h) {
  printf(
      "\"%s\":{\"count\":%lu,\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}"
      ",",
      name, h->count, h->count ? h->sum / h->count / 1e3 : -1, percentile_us(h, .5), percentile_us(h, .9),
      percentile_us(h, .99), percentile_us(h, .999), h->most / 1e3);
}

struct use {
  double user_s, system_s;
};

static inline struct use use_of(int pid) {
  char name[64], text[2048];
  unsigned long user = 0, system = 0;
  sprintf(name, "/proc/%d/stat", pid);
  FILE* file = fopen(name, "r");
  if (!file) return (struct use){0, 0};
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  const char* after_name = strrchr(text, ')');
  if (after_name)
    sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
  double ticks = sysconf(_SC_CLK_TCK);
  return (struct use){user / ticks, system / ticks};
}

// A line like "VmRSS:  123 kB" of /proc/PID/status, in bytes; 0 when there is none.
static inline long memory_of(int pid, const char* line_name) {
  char name[64], line[256];
  long kib = 0;
  sprintf(name, "/proc/%d/status", pid);
  FILE* file = fopen(name, "r");
  if (!file) return 0;
  while (fgets(line, sizeof line, file))
    if (!strncmp(line, line_name, strlen(line_name))) sscanf(line + strlen(line_name), ": %ld", &kib);
  fclose(file);
  return kib * 1024;
}

#endif
