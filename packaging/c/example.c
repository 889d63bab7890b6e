/* The loop of a server like llama.cpp's, in small: slots with a KV cache each, one decoding step after another, and between
 * two steps the place where edgeguardd's commands are obeyed.
 *
 *     cc -std=c99 -O2 example.c edgeguardd.c -o example
 *     ./example                                            # subscribes, and waits for requests that never come
 *     ./example 1000                                       # a thousand requests, then idle
 *     edgeguardctl conformance --exec ./example
 *
 * What is the conformance suite's and no real server's needs: print_state(), and the reasons "conformance: ..."
 * (docs/how-to/write-a-client.md).
 */
#define _POSIX_C_SOURCE 200809L

#include "edgeguardd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define SLOTS 8
#define TOKENS_A_REQUEST 64
#define BYTES_A_TOKEN (16 * 1024)

struct slot {
    char *cache; /* kept after the request, for a later one with the same prefix */
    int tokens;
    int left; /* tokens still to decode; 0: idle */
};

struct server {
    struct slot slots[SLOTS];
    double max_batch_ratio;
    int accepting, loaded;
    long trims, waiting, refused;
};

static void print_state(const struct server *server) {
    printf("{\"max_batch_ratio\": %g, \"accept_requests\": %s, \"model_loaded\": %s, \"trims\": %ld}\n",
           server->max_batch_ratio, server->accepting ? "true" : "false", server->loaded ? "true" : "false",
           server->trims);
    fflush(stdout);
}

/* The caches of idle slots go; what runs is left alone. Freed is not yet given back: the allocator has to let go too. */
static long long drop_idle_caches(struct server *server) {
    long long released = 0;
    int i;

    for (i = 0; i < SLOTS; i++) {
        struct slot *slot = &server->slots[i];
        if (slot->left > 0 || slot->cache == NULL) continue;
        released += (long long)slot->tokens * BYTES_A_TOKEN;
        free(slot->cache);
        slot->cache = NULL;
        slot->tokens = 0;
    }
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    return released;
}

static struct eg_answer trim(struct server *server, const struct eg_command *command) {
    struct eg_answer answer = {EG_DONE, EG_EFFECT_RELEASED, 0, NULL};

    if (strcmp(command->reason, "conformance: fail") == 0) {
        answer.status = EG_FAILED;
        answer.message = "told to fail";
        return answer;
    }
    if (strcmp(command->reason, "conformance: slow") == 0) {
        struct timespec half = {0, 500000000L};
        nanosleep(&half, NULL);
    }
    answer.released_bytes = drop_idle_caches(server);
    server->trims++;
    print_state(server);
    return answer;
}

/* Between two decoding steps, so nothing is in the middle of anything. */
static struct eg_answer obey(void *context, const struct eg_command *command) {
    struct server *server = context;
    struct eg_answer answer = {EG_DONE, EG_EFFECT_NONE, 0, NULL};

    if (command->action == EG_TRIM_KV_CACHE) return trim(server, command);
    if (command->max_batch_ratio >= 0.0) server->max_batch_ratio = command->max_batch_ratio;
    if (command->accept_requests >= 0) server->accepting = command->accept_requests;
    if (command->model_loaded >= 0) server->loaded = command->model_loaded;
    print_state(server);
    return answer;
}

/* How many slots may run: a share of the configured ones, one at least while requests are taken at all. */
static int batch_of(const struct server *server) {
    int batch = (int)(server->max_batch_ratio * SLOTS);

    return batch > 0 ? batch : 1;
}

static void begin_request(struct slot *slot) {
    if (slot->cache == NULL) slot->cache = malloc((size_t)TOKENS_A_REQUEST * BYTES_A_TOKEN);
    if (slot->cache == NULL) return; /* refused by the allocator; the request stays where it is */
    slot->tokens = 0;
    slot->left = TOKENS_A_REQUEST;
}

/* One decoding step: every running slot gets a token, and its cache grows by that. Returns how many ran. */
static int decode(struct server *server) {
    int i, running = 0;

    for (i = 0; i < SLOTS; i++) running += server->slots[i].left > 0;
    for (i = 0; i < SLOTS; i++) {
        struct slot *slot = &server->slots[i];
        if (slot->left == 0 && server->waiting > 0 && server->loaded && running < batch_of(server)) {
            begin_request(slot);
            server->waiting -= slot->left > 0;
            running += slot->left > 0;
        }
        if (slot->left == 0) continue;
        memset(slot->cache + (size_t)slot->tokens * BYTES_A_TOKEN, 1, BYTES_A_TOKEN);
        slot->tokens++;
        slot->left--;
    }
    return running;
}

static long long cached_bytes(const struct server *server) {
    long long bytes = 0;
    int i;

    for (i = 0; i < SLOTS; i++) bytes += (long long)server->slots[i].tokens * BYTES_A_TOKEN;
    return bytes;
}

static void complain(void *context, const char *sentence) {
    (void)context;
    fprintf(stderr, "example: %s\n", sentence);
}

int main(int argc, char **argv) {
    static struct server server; /* all idle */
    struct eg_options options = {0};
    const char *lost_after = getenv("EDGEGUARDD_LOST_AFTER_S");
    long to_come = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    eg_client *guard;

    server.max_batch_ratio = 1.0;
    server.accepting = server.loaded = 1;
    options.name = "c-example";
    options.supports = EG_TRIM_KV_CACHE | EG_REDUCE_BATCH | EG_REJECT_REQUESTS | EG_UNLOAD_MODEL;
    options.handler = obey;
    options.context = &server;
    options.lost_after_s = lost_after == NULL ? 0.0 : strtod(lost_after, NULL);
    options.log = complain;
    guard = eg_open(&options);
    if (guard == NULL) {
        perror("example: cannot subscribe");
        return 1;
    }
    for (;;) {
        int running = decode(&server);
        if (to_come > 0) {
            to_come--;
            if (server.accepting) server.waiting++;
            else server.refused++;
        }
        eg_report(guard, EG_KV_BYTES, cached_bytes(&server));
        eg_report(guard, EG_RUNNING, running);
        eg_report(guard, EG_WAITING, server.waiting);
        /* Busy: look, and go on decoding. Idle: sleep until there is something to do. */
        if (eg_wait(guard, running > 0 || to_come > 0 ? 0 : 1000) < 0 && errno != EINTR) break;
    }
    perror("example: cannot go on");
    eg_close(guard);
    return 1;
}
