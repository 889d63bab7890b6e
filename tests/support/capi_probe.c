/* Uses the C client in the ways that its example does not; argv[1] says in which. tests/component/test_c_client.py. */
#define _POSIX_C_SOURCE 200809L

#include "edgeguardd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct eg_command kept; /* accepted, not finished */
static const char *mode;
static int commands, log_lines;
static eg_client *guard;

static struct eg_answer obey(void *context, const struct eg_command *command) {
    struct eg_answer answer = {EG_DONE, EG_EFFECT_NONE, 0, NULL};

    (void)context;
    commands++;
    printf("%d %lld %lld %g %d %d %s\n", (int)command->action, command->seq, command->release_bytes,
           command->max_batch_ratio, command->accept_requests, command->model_loaded, command->reason);
    fflush(stdout);
    if (strcmp(mode, "later") == 0 && command->seq > 0) {
        kept = *command;
        answer.status = EG_ACCEPTED;
    }
    if (strcmp(mode, "message") == 0) {
        answer.status = EG_FAILED;
        answer.message = "say \"no\" \\ \x01\n\xff\xc3 caf\xc3\xa9 \xf0\x9f\xa7\xa0";
    }
    if (strcmp(mode, "long-message") == 0) {
        static char text[5000];
        memset(text, '\x02', sizeof text - 1);
        answer.message = text;
    }
    if (strcmp(mode, "within") == 0 && command->release_bytes < 0) {
        kept = *command;
        answer.status = EG_ACCEPTED;
    } else if (strcmp(mode, "within") == 0) {
        static char text[5000];
        long long i;
        memset(text, '\x02', sizeof text - 1);
        for (i = 0; i < command->release_bytes; i++) {
            answer.message = i + 1 < command->release_bytes ? NULL : text; /* the last one is long */
            eg_finish(guard, &kept, answer);
        }
        kept.seq = 0;
        puts("within");
        fflush(stdout);
    }
    if (strcmp(mode, "nonsense") == 0) {
        int far = 77;
        memcpy(&answer.status, &far, sizeof answer.status);
        memcpy(&answer.effect, &far, sizeof answer.effect);
    }
    return answer;
}

static void note(void *context, const char *sentence) {
    (void)context;
    log_lines++;
    fprintf(stderr, "%s\n", sentence);
}

static int refused(struct eg_options options, const char *what) {
    eg_client *client;

    errno = 0;
    client = eg_open(&options);
    if (client == NULL && errno == EINVAL) return 1;
    fprintf(stderr, "taken: %s\n", what);
    eg_close(client);
    return 0;
}

static int try_options(void) {
    struct eg_options good = {0}, bad;
    char long_name[130], long_path[300];
    int all = 1;
    eg_client *client;

    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    memset(long_path, 'p', sizeof long_path - 1);
    long_path[0] = '/';
    long_path[sizeof long_path - 1] = '\0';
    good.name = "good";
    good.handler = obey;
    bad = good, bad.name = NULL, all &= refused(bad, "no name");
    bad = good, bad.name = "", all &= refused(bad, "an empty name");
    bad = good, bad.name = long_name, all &= refused(bad, "129 characters");
    bad = good, bad.name = "a\nb", all &= refused(bad, "a newline");
    bad = good, bad.name = "a\xe2\x80\xa8", all &= refused(bad, "a line separator");
    bad = good, bad.name = "\xff", all &= refused(bad, "no UTF-8");
    bad = good, bad.handler = NULL, all &= refused(bad, "no handler");
    bad = good, bad.target = "", all &= refused(bad, "an empty target");
    bad = good, bad.path = "relative", all &= refused(bad, "a relative path");
    bad = good, bad.path = long_path, all &= refused(bad, "a long path");
    long_name[128] = '\0';
    good.name = long_name;
    client = eg_open(&good);
    all &= client != NULL && eg_fd(client) == -1 && !eg_connected(client) && eg_accept_requests(client);
    eg_close(client);
    eg_close(NULL);
    return all;
}

int main(int argc, char **argv) {
    struct eg_options options = {0};
    struct eg_answer done = {EG_DONE, EG_EFFECT_RELEASED, 5, NULL};
    const char *lost_after = getenv("LOST_AFTER_S");
    long long reported = 0;
    int idle = 0;

    mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "options") == 0) return try_options() ? 0 : 1;
    options.name = "probe";
    options.supports = EG_TRIM_KV_CACHE | EG_REDUCE_BATCH | EG_REJECT_REQUESTS;
    options.handler = obey;
    options.log = note;
    options.target = getenv("TARGET");
    options.lost_after_s = lost_after ? strtod(lost_after, NULL) : 0.0;
    guard = eg_open(&options);
    if (guard == NULL) return 2;
    while (strcmp(mode, "leave") != 0 || commands == 0) {
        if (eg_wait(guard, 20) < 0) return 3;
        if (strcmp(mode, "report") == 0)
            for (; reported % 1000 != 999; reported++) eg_report(guard, EG_KV_BYTES, reported);
        if (strcmp(mode, "report") == 0 && eg_connected(guard)) reported++;
        if (kept.seq > 0 && ++idle == 10) {
            eg_finish(guard, &kept, done);
            kept.seq = idle = 0;
            puts("finished");
            fflush(stdout);
        }
    }
    eg_close(guard);
    return 0;
}
