// What the engine says; made once, but for the stamp of a token.
#ifndef TEXTS_H
#define TEXTS_H
#include "common.h"

#define CHAT_BYTES 1024

static char token[512], ending[1024], chat[4096], block[BLOCK_BYTES], *stamp_at;
static size_t token_bytes, ending_bytes, chat_bytes;
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

#define CHUNK_START                                                                                   \
  "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\"," \
  "\"created\":1700000000,\"model\":\"fake-llm\",\"choices\":[{\"index\":0,\"delta\":"

static void prepare(void) {
  char event[480];
  int size = snprintf(
      event, sizeof event, CHUNK_START "{\"content\":\"t=%019d \"},\"finish_reason\":null}]}\n\n", 0);
  token_bytes = sprintf(token, "%x\r\n%s\r\n", size, event);
  stamp_at = strstr(token, "t=0000000") + 2;
  size = snprintf(event, sizeof event, CHUNK_START "{},\"finish_reason\":\"stop\"}]}\n\n");
  ending_bytes = sprintf(ending, "%x\r\n%s\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", size, event);
  const char* start =
      "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\",\"created\":"
      "1700000000,"
      "\"model\":\"fake-llm\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
  const char* end =
      "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":180,\"total_"
      "tokens\":380}}";
  int text = CHAT_BYTES - (int)(strlen(start) + strlen(end));
  chat_bytes = sprintf(
      chat,
      "HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
      CHAT_BYTES, start);
  for (int i = 0; i < text; i++) chat[chat_bytes++] = i % 6 == 5 ? ' ' : 'a' + i * 7 % 26;
  chat_bytes += sprintf(chat + chat_bytes, "%s", end);
  memset(block, 'x', sizeof block);
}

#endif
