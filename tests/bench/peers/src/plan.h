// What the load was told to do.
#ifndef PLAN_H
#define PLAN_H
#include "common.h"

#include <getopt.h>

#define PROCESSES 64

static struct {
  bool streams, down, up;
  int port, connections, tokens, request_bytes, pids[PROCESSES], pid_count;
  uint64_t bytes, answers;
  double warm_s, window_s, ramp_s, rate;
  const char *path, *model, *key;
  char fields[4096];
} plan = {
    .port = 9000,
    .connections = 64,
    .tokens = 200,
    .request_bytes = 1024,
    .warm_s = 1,
    .window_s = 5,
    .path = "/v1/chat/completions",
    .model = "fake-llm",
    .key = "none"};

static void read_options(int count, char** arguments) {
  plan.streams = count > 1 && !strcmp(arguments[1], "stream");
  plan.down = count > 1 && !strcmp(arguments[1], "down");
  plan.up = count > 1 && !strcmp(arguments[1], "up");
  optind = 2;
  for (int option; (option = getopt(count, arguments, "P:c:n:B:d:w:q:g:r:b:u:m:a:H:p:")) > 0;)
    switch (option) {
      case 'P':
        plan.port = atoi(optarg);
        break;
      case 'c':
        plan.connections = atoi(optarg);
        break;
      case 'n':
        plan.tokens = atoi(optarg);
        break;
      case 'B':
        plan.bytes = strtoull(optarg, NULL, 10);
        break;
      case 'd':
        plan.window_s = atof(optarg);
        break;
      case 'w':
        plan.warm_s = atof(optarg);
        break;
      case 'q':
        plan.answers = strtoull(optarg, NULL, 10);
        break;
      case 'g':
        plan.ramp_s = atof(optarg);
        break;
      case 'r':
        plan.rate = atof(optarg);
        break;
      case 'b':
        plan.request_bytes = atoi(optarg);
        break;
      case 'u':
        plan.path = optarg;
        break;
      case 'm':
        plan.model = optarg;
        break;
      case 'a':
        plan.key = optarg;
        break;
      case 'H':
        snprintf(
            plan.fields + strlen(plan.fields), sizeof plan.fields - strlen(plan.fields), "%s\r\n", optarg);
        break;
      case 'p':
        for (char* pid = strtok(optarg, ","); pid && plan.pid_count < PROCESSES; pid = strtok(NULL, ","))
          plan.pids[plan.pid_count++] = atoi(pid);
        break;
      default:
        exit(2);
    }
}

#endif
