/* The C client of edgeguardd; see edgeguardd.h.
 *
 * From top to bottom: the JSON reader, the writer, what a message means, the connection, the public functions.
 * Bounds: one line of input, OUT_BYTES of output, and no line is taken in before there is room for its answer.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "edgeguardd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_PATH "/run/edgeguardd/edgeguardd.sock"
#define VERSION 1
#define LINE_BYTES 65536 /* the longest line without its newline */
#define OUT_BYTES 8192
#define ANSWER_BYTES 2048 /* the longest answer to one line */
#define MAX_NAME_CHARS 128
#define MAX_NAME_BYTES (4 * MAX_NAME_CHARS)
#define MAX_MESSAGE_BYTES 256 /* of what a handler says, before escapes */
#define MAX_REASON_BYTES 512
#define TOLD 12 /* commands whose answers are remembered; the daemon awaits one an action */
#define MAX_DEPTH 512 /* of nested values; deeper ones make a line unreadable */

/* Seconds. The same figures as in the Python client. */
#define FIRST_PAUSE_S 0.1
#define LONGEST_PAUSE_S 5.0
#define LOST_AFTER_S 30.0
#define LIFT_AGAIN_S 5.0
#define WELCOME_S 10.0
#define REPORT_S 0.1
#define LEAST_HEARTBEAT_S 0.1
#define MOST_HEARTBEAT_S 3600.0
#define OWN_DEADLINE_S 30.0
#define SILENT_HEARTBEATS 3
#define NEVER 1e300
#define MOST_TIMEOUT_MS 3600000

/* ---- Reading JSON: strict, without recursion but for one level, without allocation ---- */

struct reader {
    const unsigned char *at, *end;
};

static void skip_space(struct reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n')) r->at++;
}

/* Take one byte, after white space. */
static int take(struct reader *r, unsigned char byte) {
    skip_space(r);
    if (r->at == r->end || *r->at != byte) return 0;
    r->at++;
    return 1;
}

/* The length of the UTF-8 sequence at `at`, 0 for none: RFC 3629, no overlong forms, no surrogates. */
static size_t utf8_length(const unsigned char *at, const unsigned char *end) {
    size_t length, i;
    unsigned char low = 0x80, high = 0xBF;

    if (at == end) return 0;
    if (*at < 0x80) return 1;
    if (*at >= 0xC2 && *at <= 0xDF) length = 2;
    else if (*at >= 0xE0 && *at <= 0xEF) length = 3;
    else if (*at >= 0xF0 && *at <= 0xF4) length = 4;
    else return 0;
    if (*at == 0xE0) low = 0xA0;
    if (*at == 0xED) high = 0x9F;
    if (*at == 0xF0) low = 0x90;
    if (*at == 0xF4) high = 0x8F;
    if ((size_t)(end - at) < length || at[1] < low || at[1] > high) return 0;
    for (i = 2; i < length; i++)
        if (at[i] < 0x80 || at[i] > 0xBF) return 0;
    return length;
}

static int hex4(struct reader *r, unsigned long *unit) {
    int i;

    *unit = 0;
    for (i = 0; i < 4; i++, r->at++) {
        unsigned char c;
        if (r->at == r->end) return 0;
        c = *r->at;
        if (c >= '0' && c <= '9') *unit = *unit * 16 + (unsigned long)(c - '0');
        else if (c >= 'a' && c <= 'f') *unit = *unit * 16 + (unsigned long)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F') *unit = *unit * 16 + (unsigned long)(c - 'A') + 10;
        else return 0;
    }
    return 1;
}

/* What follows \u, a pair of surrogates included, as UTF-8. Its length, 0 for nonsense. */
static size_t escaped_unit(struct reader *r, unsigned char utf8[4]) {
    unsigned long point, low;

    if (!hex4(r, &point) || (point >= 0xDC00 && point <= 0xDFFF)) return 0;
    if (point >= 0xD800 && point <= 0xDBFF) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u') return 0;
        r->at += 2;
        if (!hex4(r, &low) || low < 0xDC00 || low > 0xDFFF) return 0;
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    }
    if (point < 0x80) {
        utf8[0] = (unsigned char)point;
        return 1;
    }
    if (point < 0x800) {
        utf8[0] = (unsigned char)(0xC0 | (point >> 6));
        utf8[1] = (unsigned char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        utf8[0] = (unsigned char)(0xE0 | (point >> 12));
        utf8[1] = (unsigned char)(0x80 | ((point >> 6) & 0x3F));
        utf8[2] = (unsigned char)(0x80 | (point & 0x3F));
        return 3;
    }
    utf8[0] = (unsigned char)(0xF0 | (point >> 18));
    utf8[1] = (unsigned char)(0x80 | ((point >> 12) & 0x3F));
    utf8[2] = (unsigned char)(0x80 | ((point >> 6) & 0x3F));
    utf8[3] = (unsigned char)(0x80 | (point & 0x3F));
    return 4;
}

/* One character of a string's inside. Its length as UTF-8, 0 for nonsense. */
static size_t string_unit(struct reader *r, unsigned char utf8[4]) {
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *found;
    size_t length;

    if (*r->at < 0x20) return 0;
    if (*r->at != '\\') {
        length = utf8_length(r->at, r->end);
        memcpy(utf8, r->at, length);
        r->at += length;
        return length;
    }
    if (++r->at == r->end) return 0;
    if (*r->at == 'u') {
        r->at++;
        return escaped_unit(r, utf8);
    }
    found = *r->at == '\0' ? NULL : strchr(escapes, *r->at);
    if (found == NULL) return 0;
    r->at++;
    utf8[0] = (unsigned char)meanings[found - escapes];
    return 1;
}

/* A string into `text`, which has `room` bytes with its NUL. What does not fit, and all from a NUL on, is cut at a
 * character; *whole says whether nothing was. text may be NULL. */
static int read_string(struct reader *r, char *text, size_t room, int *whole) {
    size_t used = 0;
    int cut = 0;

    if (!take(r, '"')) return 0;
    while (r->at < r->end && *r->at != '"') {
        unsigned char utf8[4];
        size_t length = string_unit(r, utf8);
        if (length == 0) return 0;
        if (text == NULL) continue;
        if (utf8[0] == '\0' || used + length >= room) cut = 1;
        if (cut) continue;
        memcpy(text + used, utf8, length);
        used += length;
    }
    if (r->at == r->end) return 0;
    r->at++;
    if (text != NULL) text[used] = '\0';
    if (whole != NULL) *whole = !cut;
    return 1;
}

struct number {
    double value;
    long long whole; /* meaningful where is_whole */
    int is_whole;
};

static int is_digit(const struct reader *r) { return r->at < r->end && *r->at >= '0' && *r->at <= '9'; }

/* The digits before the point. */
static int read_digits(struct reader *r, struct number *n) {
    unsigned long long whole = 0;

    if (!is_digit(r) || (*r->at == '0' && r->end - r->at > 1 && r->at[1] >= '0' && r->at[1] <= '9')) return 0;
    for (; is_digit(r); r->at++) {
        unsigned digit = (unsigned)(*r->at - '0');
        n->value = n->value * 10.0 + digit;
        if (whole > (9223372036854775807ULL - digit) / 10ULL) n->is_whole = 0;
        if (n->is_whole) whole = whole * 10ULL + digit;
    }
    n->whole = (long long)whole;
    return 1;
}

/* The digits after the point; how many places they took is subtracted from the scale. */
static int read_fraction(struct reader *r, struct number *n, int *scale) {
    n->is_whole = 0;
    if (!is_digit(r)) return 0;
    for (; is_digit(r); r->at++) {
        if (*scale == -17) continue; /* more digits than a double has */
        n->value = n->value * 10.0 + (*r->at - '0');
        --*scale;
    }
    return 1;
}

/* What follows the e, added to the scale. */
static int read_exponent(struct reader *r, struct number *n, int *scale) {
    int negative = 0, exponent = 0;

    n->is_whole = 0;
    if (r->at < r->end && (*r->at == '-' || *r->at == '+')) negative = *r->at++ == '-';
    if (!is_digit(r)) return 0;
    for (; is_digit(r); r->at++)
        if (exponent < 1000) exponent = exponent * 10 + (*r->at - '0');
    *scale += negative ? -exponent : exponent;
    return 1;
}

/* A number of any size. strtod() would obey the locale; one division by a power of ten rounds as well as it does for
 * numbers of up to 15 digits. */
static int read_number(struct reader *r, struct number *n) {
    double power = 1.0;
    int negative, scale = 0, i;

    n->value = 0.0;
    n->whole = 0;
    n->is_whole = 1;
    negative = take(r, '-');
    if (!negative) skip_space(r);
    if (!read_digits(r, n)) return 0;
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!read_fraction(r, n, &scale)) return 0;
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (!read_exponent(r, n, &scale)) return 0;
    }
    if (n->value > 0.0) {
        for (i = scale < 0 ? -scale : scale; i > 0 && power < NEVER; i--) power *= 10.0;
        n->value = scale < 0 ? n->value / power : n->value * power;
    }
    if (negative) {
        n->value = -n->value;
        n->whole = -n->whole;
    }
    return 1;
}

static int read_word(struct reader *r, const char *word) {
    size_t length = strlen(word);

    skip_space(r);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0) return 0;
    r->at += length;
    return 1;
}

static int read_simple(struct reader *r) {
    struct number ignored;

    skip_space(r);
    if (r->at == r->end) return 0;
    if (*r->at == '"') return read_string(r, NULL, 0, NULL);
    if (*r->at == '-' || is_digit(r)) return read_number(r, &ignored);
    return read_word(r, "true") || read_word(r, "false") || read_word(r, "null");
}

/* Any value, checked and forgotten. Brackets that are open are kept in `open`, so that no nesting uses the stack. */
static int skip_value(struct reader *r) {
    char open[MAX_DEPTH];
    int depth = 0;

    for (;;) {
        int begun = 0; /* a container has just been opened, and may be empty */
        skip_space(r);
        if (r->at < r->end && (*r->at == '{' || *r->at == '[')) {
            if (depth == MAX_DEPTH) return 0;
            open[depth++] = *r->at++ == '{' ? '}' : ']';
            begun = 1;
        } else if (!read_simple(r)) {
            return 0;
        }
        while (depth > 0 && take(r, (unsigned char)open[depth - 1])) {
            depth--;
            begun = 0;
        }
        if (depth == 0) return 1;
        if (!begun && !take(r, ',')) return 0;
        if (open[depth - 1] == '}' && (!read_string(r, NULL, 0, NULL) || !take(r, ':'))) return 0;
    }
}

/* ---- What a message holds ---- */

enum kind { TEXT, NUMBER, WHOLE, TRUTH, PARAMETERS };

/* Everything that any message may say. Numbers that were not said are negative. */
struct message {
    char type[16], action[32], code[64], id[MAX_NAME_BYTES + 1], reason[MAX_REASON_BYTES + 1];
    char text[MAX_REASON_BYTES + 1], epoch[MAX_NAME_BYTES + 1];
    int whole_id, has_seq, has_id, has_parameters;
    long long version, seq, release_bytes, needed_target_bytes;
    double deadline_s, heartbeat_s;
    /* The welcome's own and those within a command's parameters: the same words at two places. */
    double max_batch_ratio, asked_batch_ratio;
    int accept_requests, asked_accept, model_loaded, asked_loaded;
};

struct field {
    const char *name;
    enum kind kind;
    size_t offset, room;
};

#define FIELD(name, kind, member) {name, kind, offsetof(struct message, member), sizeof(((struct message *)0)->member)}

static const struct field PARAMETER_FIELDS[] = {
    FIELD("release_bytes", WHOLE, release_bytes),
    FIELD("needed_target_bytes", WHOLE, needed_target_bytes),
    FIELD("max_batch_ratio", NUMBER, asked_batch_ratio),
    FIELD("accept_requests", TRUTH, asked_accept),
    FIELD("model_loaded", TRUTH, asked_loaded),
};

static const struct field MESSAGE_FIELDS[] = {
    FIELD("type", TEXT, type),
    FIELD("v", WHOLE, version),
    FIELD("seq", WHOLE, seq),
    FIELD("action", TEXT, action),
    FIELD("reason", TEXT, reason),
    FIELD("deadline_s", NUMBER, deadline_s),
    FIELD("heartbeat_s", NUMBER, heartbeat_s),
    FIELD("max_batch_ratio", NUMBER, max_batch_ratio),
    FIELD("accept_requests", TRUTH, accept_requests),
    FIELD("model_loaded", TRUTH, model_loaded),
    FIELD("id", TEXT, id),
    FIELD("code", TEXT, code),
    FIELD("epoch", TEXT, epoch),
    FIELD("message", TEXT, text),
    {"parameters", PARAMETERS, 0, 0},
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static int read_object(struct reader *r, struct message *m, const struct field *fields, size_t count);

/* One field's value. A value of another kind makes the line unreadable; null says nothing. */
static int read_field(struct reader *r, struct message *m, const struct field *field) {
    void *place = (char *)m + field->offset;
    struct number number;
    int whole;

    if (read_word(r, "null")) return 1;
    switch (field->kind) {
    case TEXT:
        if (!read_string(r, place, field->room, &whole)) return 0;
        if (place == m->id) {
            m->has_id = 1;
            m->whole_id = whole;
        } else if (!whole && place != m->reason && place != m->text) {
            ((char *)place)[0] = '\0'; /* a word that was cut is none that we know, even if its beginning is */
        }
        return 1;
    case NUMBER:
        if (!read_number(r, &number) || !(number.value < NEVER && number.value > -NEVER)) return 0;
        *(double *)place = number.value;
        return 1;
    case WHOLE:
        if (!read_number(r, &number) || !number.is_whole) return 0;
        *(long long *)place = number.whole;
        if (place == &m->seq) m->has_seq = 1;
        return 1;
    case TRUTH:
        if (read_word(r, "true")) *(int *)place = 1;
        else if (read_word(r, "false")) *(int *)place = 0;
        else return 0;
        return 1;
    case PARAMETERS:
        m->has_parameters = 1;
        return read_object(r, m, PARAMETER_FIELDS, COUNT(PARAMETER_FIELDS));
    }
    return 0;
}

/* An object, known fields taken and others passed over. Calls itself once at most: parameters hold no parameters. */
static int read_object(struct reader *r, struct message *m, const struct field *fields, size_t count) {
    if (!take(r, '{')) return 0;
    if (take(r, '}')) return 1;
    do {
        char name[32];
        size_t i = count;
        int whole;
        if (!read_string(r, name, sizeof name, &whole) || !take(r, ':')) return 0;
        if (whole)
            for (i = 0; i < count && strcmp(fields[i].name, name) != 0; i++) continue;
        if (i < count ? !read_field(r, m, &fields[i]) : !skip_value(r)) return 0;
    } while (take(r, ','));
    return take(r, '}');
}

static int read_message(const char *line, size_t length, struct message *m) {
    struct reader r;

    r.at = (const unsigned char *)line;
    r.end = r.at + length;
    memset(m, 0, sizeof *m);
    m->version = VERSION;
    m->release_bytes = m->needed_target_bytes = -1;
    m->max_batch_ratio = m->asked_batch_ratio = m->deadline_s = m->heartbeat_s = -1.0;
    m->accept_requests = m->asked_accept = m->model_loaded = m->asked_loaded = -1;
    if (!read_object(&r, m, MESSAGE_FIELDS, COUNT(MESSAGE_FIELDS)) || m->version != VERSION) return 0;
    skip_space(&r);
    return r.at == r.end;
}

/* ---- The client ---- */

struct in_force {
    double max_batch_ratio;
    int accept_requests, model_loaded;
};

static const struct in_force UNRESTRICTED = {1.0, 1, 1};

/* A command of this epoch: how it was answered, or that it is under way. What is told again is answered again. */
struct told {
    long long seq; /* 0: free */
    unsigned long connection, order;
    int ended, unsaid, handed_in;
    struct eg_answer answer;
    char message[MAX_MESSAGE_BYTES + 1];
};

struct eg_client {
    eg_handler *handler;
    void (*log)(void *, const char *);
    void *context;
    unsigned supports;
    char name[MAX_NAME_BYTES + 1], target[MAX_NAME_BYTES + 1], path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char refusal[sizeof(((struct message *)0)->text)];
    int fd, welcomed, skipping, away_said, busy;
    unsigned long connection;
    unsigned long long chance;
    double pause_s, connect_at, heard_at, pinged_at, heartbeat_s, lost_after_s, lift_at, report_at;
    /* What the daemon says is in force, and what the handler has carried out. */
    struct in_force wanted, applied;
    struct told told[TOLD];
    unsigned long told_count;
    char epoch[MAX_NAME_BYTES + 1];
    long long figures[EG_FIGURES];
    unsigned char known[EG_FIGURES], unsent[EG_FIGURES];
    size_t in_used, out_used;
    char in[LINE_BYTES + 1], out[OUT_BYTES];
};

/* Fails to compile when a client is larger than the header promises. */
typedef char client_is_as_small_as_promised[sizeof(struct eg_client) <= EG_MOST_BYTES ? 1 : -1];

static double now_s(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void tell(const eg_client *c, const char *sentence, const char *why) {
    char text[768];

    if (c->log == NULL) return;
    snprintf(text, sizeof text, "%s%s%s", sentence, why[0] == '\0' ? "" : ": ", why);
    c->log(c->context, text);
}

/* ---- Writing ---- */

static void put(eg_client *c, const char *text) {
    size_t length = strlen(text);

    if (length > OUT_BYTES - c->out_used) return; /* ANSWER_BYTES are kept free for every line that is read */
    memcpy(c->out + c->out_used, text, length);
    c->out_used += length;
}

static void put_whole(eg_client *c, long long value) {
    char text[24];

    snprintf(text, sizeof text, "%lld", value);
    put(c, text);
}

/* A string in quotes, at most so many bytes of it. What is no UTF-8 becomes a question mark. */
static void put_string(eg_client *c, const char *string, size_t most_bytes) {
    const unsigned char *at = (const unsigned char *)string, *end = at + strlen(string);

    put(c, "\"");
    while (at < end) {
        size_t length = utf8_length(at, end);
        char text[8] = {0};
        if ((size_t)(at - (const unsigned char *)string) + (length ? length : 1) > most_bytes) break;
        if (length == 0) {
            text[0] = '?';
            length = 1;
        } else if (*at == '"' || *at == '\\') {
            text[0] = '\\';
            text[1] = (char)*at;
        } else if (*at < 0x20) {
            snprintf(text, sizeof text, "\\u%04x", *at);
        } else {
            memcpy(text, at, length);
        }
        put(c, text);
        at += length;
    }
    put(c, "\"");
}

static void say_hello(eg_client *c) {
    static const struct {
        enum eg_action action;
        const char *word;
    } actions[] = {
        {EG_TRIM_KV_CACHE, "\"trim_kv_cache\""},
        {EG_REDUCE_BATCH, "\"reduce_batch\""},
        {EG_REJECT_REQUESTS, "\"reject_requests\""},
        {EG_UNLOAD_MODEL, "\"unload_model\""},
    };
    size_t i;
    const char *comma = "";

    put(c, "{\"type\":\"hello\",\"name\":");
    put_string(c, c->name, MAX_NAME_BYTES);
    put(c, ",\"target\":");
    put_string(c, c->target, MAX_NAME_BYTES);
    put(c, ",\"supports\":[");
    for (i = 0; i < COUNT(actions); i++) {
        if (!(c->supports & actions[i].action)) continue;
        put(c, comma);
        put(c, actions[i].word);
        comma = ",";
    }
    put(c, "]}\n");
}

static void say_ack(eg_client *c, long long seq, struct eg_answer answer) {
    static const char *const statuses[] = {"done", "failed", "unsupported", "accepted"};
    static const char *const effects[] = {NULL, "none", "logical", "released"};

    put(c, "{\"type\":\"ack\",\"seq\":");
    put_whole(c, seq);
    put(c, ",\"status\":\"");
    put(c, statuses[answer.status]);
    put(c, "\"");
    if (answer.status == EG_DONE && effects[answer.effect] != NULL) {
        put(c, ",\"effect\":\"");
        put(c, effects[answer.effect]);
        put(c, "\"");
    }
    if (answer.status == EG_DONE && answer.effect == EG_EFFECT_RELEASED && answer.released_bytes >= 0) {
        put(c, ",\"released_bytes\":");
        put_whole(c, answer.released_bytes);
    }
    if (answer.message != NULL) {
        put(c, ",\"message\":");
        put_string(c, answer.message, MAX_MESSAGE_BYTES);
    }
    put(c, "}\n");
}

static int report_is_due(const eg_client *c) {
    return c->welcomed && memchr(c->unsent, 1, sizeof c->unsent) != NULL && OUT_BYTES - c->out_used >= ANSWER_BYTES;
}

static void say_report(eg_client *c, double now) {
    static const char *const names[EG_FIGURES] = {
        ",\"static_bytes\":", ",\"kv_bytes\":",        ",\"running\":",           ",\"waiting\":",
        ",\"batch_limit\":",  ",\"bytes_per_token\":", ",\"bytes_per_request\":",
    };
    int i;

    put(c, "{\"type\":\"report\"");
    for (i = 0; i < EG_FIGURES; i++) {
        if (!c->unsent[i]) continue;
        put(c, names[i]);
        put_whole(c, c->figures[i]);
        c->unsent[i] = 0;
    }
    put(c, "}\n");
    c->report_at = now + REPORT_S;
}

/* ---- Obeying ---- */

static void disconnect(eg_client *c, double now, const char *why);
static void flush(eg_client *c, double now);
static int has_room(const eg_client *c);

/* Answer a command whole, or leave a daemon that does not read. What a handler finishes takes room from the answer to
 * its own command, and may even end the connection, and then its answers go nowhere. */
static void answer_command(eg_client *c, long long seq, struct eg_answer answer) {
    if (c->fd >= 0 && !has_room(c)) flush(c, now_s());
    if (c->fd >= 0 && !has_room(c)) disconnect(c, now_s(), "it does not read");
    if (c->fd >= 0) say_ack(c, seq, answer);
}

static struct in_force after(struct in_force state, const struct eg_command *command) {
    if (command->max_batch_ratio >= 0.0) state.max_batch_ratio = command->max_batch_ratio;
    if (command->accept_requests >= 0) state.accept_requests = command->accept_requests;
    if (command->model_loaded >= 0) state.model_loaded = command->model_loaded;
    return state;
}

static int differ(struct in_force a, struct in_force b) {
    return a.max_batch_ratio < b.max_batch_ratio || a.max_batch_ratio > b.max_batch_ratio ||
           a.accept_requests != b.accept_requests || a.model_loaded != b.model_loaded;
}

static struct eg_answer carry_out(eg_client *c, const struct eg_command *command) {
    struct eg_answer answer = c->handler(c->context, command);

    if ((unsigned)answer.status > EG_ACCEPTED) answer.status = EG_FAILED;
    if ((unsigned)answer.effect > EG_EFFECT_RELEASED) answer.effect = EG_EFFECT_UNKNOWN;
    if (answer.status == EG_DONE) c->applied = after(c->applied, command);
    return answer;
}

static struct eg_command own_command(const eg_client *c, enum eg_action action, const char *reason) {
    struct eg_command command = {0};

    command.action = action;
    command.release_bytes = command.needed_target_bytes = -1;
    command.max_batch_ratio = -1.0;
    command.accept_requests = command.model_loaded = -1;
    command.deadline_s = OWN_DEADLINE_S;
    command.reason = reason;
    command.connection = c->connection;
    return command;
}

/* Lead the handler from what it has carried out to what is wanted: by restore where anything is allowed again. */
static void bridge(eg_client *c, const char *reason) {
    static const enum eg_action steps[] = {EG_REDUCE_BATCH, EG_REJECT_REQUESTS, EG_UNLOAD_MODEL};
    struct in_force wanted = c->wanted, applied = c->applied;
    size_t i;

    if (wanted.max_batch_ratio > applied.max_batch_ratio || wanted.accept_requests > applied.accept_requests ||
        wanted.model_loaded > applied.model_loaded) {
        struct eg_command restore = own_command(c, EG_RESTORE, reason);
        restore.max_batch_ratio = wanted.max_batch_ratio;
        restore.accept_requests = wanted.accept_requests;
        restore.model_loaded = wanted.model_loaded;
        carry_out(c, &restore);
        return;
    }
    for (i = 0; i < COUNT(steps); i++) {
        struct eg_command step = own_command(c, steps[i], reason);
        if (!(c->supports & steps[i])) continue;
        if (steps[i] == EG_REDUCE_BATCH) step.max_batch_ratio = wanted.max_batch_ratio;
        if (steps[i] == EG_REJECT_REQUESTS) step.accept_requests = wanted.accept_requests;
        if (steps[i] == EG_UNLOAD_MODEL) step.model_loaded = wanted.model_loaded;
        if (differ(after(applied, &step), applied)) carry_out(c, &step);
    }
}

static enum eg_action action_of(const char *word) {
    if (strcmp(word, "trim_kv_cache") == 0) return EG_TRIM_KV_CACHE;
    if (strcmp(word, "reduce_batch") == 0) return EG_REDUCE_BATCH;
    if (strcmp(word, "reject_requests") == 0) return EG_REJECT_REQUESTS;
    if (strcmp(word, "unload_model") == 0) return EG_UNLOAD_MODEL;
    return strcmp(word, "restore") == 0 ? EG_RESTORE : (enum eg_action)0;
}

static struct told *told_of(eg_client *c, long long seq) {
    size_t i;

    for (i = 0; i < TOLD; i++)
        if (seq > 0 && c->told[i].seq == seq) return &c->told[i];
    return NULL;
}

/* Remember a command, in a free place, or that of the oldest that has ended; of the oldest at all where none has. */
static struct told *note_told(eg_client *c, long long seq) {
    struct told *found = &c->told[0];
    size_t i;

    for (i = 1; i < TOLD && found->seq != 0; i++) {
        struct told *other = &c->told[i];
        if (other->seq == 0 || (other->ended != found->ended ? other->ended : other->order < found->order))
            found = other;
    }
    memset(found, 0, sizeof *found);
    found->seq = seq;
    found->connection = c->connection;
    found->order = ++c->told_count;
    return found;
}

static void note_ended(struct told *told, struct eg_answer answer) {
    told->ended = told->unsaid = 1;
    told->answer = answer;
    if (answer.message == NULL) return;
    snprintf(told->message, sizeof told->message, "%s", answer.message);
    told->answer.message = told->message;
}

/* Say how it ended: now, or after the next welcome of this epoch. */
static void say_told(eg_client *c, struct told *told) {
    if (!c->welcomed) return;
    answer_command(c, told->seq, told->answer);
    told->unsaid = c->fd < 0;
}

/* A daemon that was restarted tells again what it has seen no answer to. */
static void told_again(eg_client *c, struct told *told) {
    if (told->ended && !told->handed_in) say_told(c, told);
    told->handed_in = 0;
}

static void on_command(eg_client *c, const struct message *m) {
    enum eg_action action = action_of(m->action);
    struct eg_command command = own_command(c, action, m->reason);
    struct eg_answer answer = {EG_UNSUPPORTED, EG_EFFECT_UNKNOWN, -1, "no handler for it"};
    struct told *told = told_of(c, m->seq);

    if (told != NULL) {
        told_again(c, told);
        return;
    }
    told = note_told(c, m->seq);
    if (action != 0) {
        command.seq = m->seq;
        command.release_bytes = m->release_bytes;
        command.needed_target_bytes = m->needed_target_bytes;
        command.max_batch_ratio = m->asked_batch_ratio;
        command.accept_requests = m->asked_accept;
        command.model_loaded = m->asked_loaded;
        command.deadline_s = m->deadline_s;
        c->wanted = after(c->wanted, &command);
    }
    if (action == EG_RESTORE || (c->supports & action) != 0) answer = carry_out(c, &command);
    if (told->ended) return; /* finished by the handler itself */
    if (answer.status == EG_ACCEPTED) {
        answer_command(c, m->seq, answer);
        return;
    }
    note_ended(told, answer);
    say_told(c, told);
}

/* Numbers of another epoch mean nothing in this one; acks of this one that found no connection are handed in. */
static void on_epoch(eg_client *c, const char *epoch) {
    size_t i;

    if (strcmp(c->epoch, epoch) != 0) memset(c->told, 0, sizeof c->told);
    snprintf(c->epoch, sizeof c->epoch, "%s", epoch);
    for (i = 0; i < TOLD; i++) {
        struct told *told = &c->told[i];
        told->handed_in = told->ended && told->unsaid;
        if (told->handed_in) say_told(c, told);
    }
}

static void on_welcome(eg_client *c, const struct message *m, double now) {
    int i;

    if (m->max_batch_ratio < 0.0 || m->accept_requests < 0 || m->model_loaded < 0 || m->heartbeat_s < 0.0) return;
    tell(c, "connected to edgeguardd", "");
    c->welcomed = 1;
    on_epoch(c, m->epoch);
    c->away_said = 0;
    c->refusal[0] = '\0';
    c->pause_s = FIRST_PAUSE_S;
    c->lift_at = NEVER;
    c->heartbeat_s = m->heartbeat_s;
    if (c->heartbeat_s < LEAST_HEARTBEAT_S) c->heartbeat_s = LEAST_HEARTBEAT_S;
    if (c->heartbeat_s > MOST_HEARTBEAT_S) c->heartbeat_s = MOST_HEARTBEAT_S;
    for (i = 0; i < EG_FIGURES; i++) c->unsent[i] = c->known[i];
    c->report_at = now;
    c->wanted.max_batch_ratio = m->max_batch_ratio;
    c->wanted.accept_requests = m->accept_requests;
    c->wanted.model_loaded = m->model_loaded;
    bridge(c, "in force when the daemon let us in");
}

/* How many characters a name has, 0 for what is no name: nothing, over 128, control characters, line separators. */
static size_t name_chars(const char *name) {
    const unsigned char *at = (const unsigned char *)name, *end = at + strlen(name);
    size_t chars = 0;

    for (; at < end; chars++) {
        size_t length = utf8_length(at, end);
        if (length == 0 || *at < 0x20 || *at == 0x7F || chars == MAX_NAME_CHARS) return 0;
        if (length == 2 && at[0] == 0xC2 && at[1] < 0xA0) return 0;
        if (length == 3 && at[0] == 0xE2 && at[1] == 0x80 && (at[2] == 0xA8 || at[2] == 0xA9)) return 0;
        at += length;
    }
    return chars;
}

static void on_ping(eg_client *c, const struct message *m) {
    if (m->has_id && (!m->whole_id || name_chars(m->id) == 0)) return;
    put(c, "{\"type\":\"pong\"");
    if (m->has_id) {
        put(c, ",\"id\":");
        put_string(c, m->id, MAX_NAME_BYTES);
    }
    put(c, "}\n");
}

/* Each attempt is refused in the same words: they are told once until we are let in. */
static void on_error(eg_client *c, const char *text) {
    if (!c->welcomed && strcmp(c->refusal, text) == 0) return;
    if (!c->welcomed) snprintf(c->refusal, sizeof c->refusal, "%s", text);
    tell(c, "edgeguardd says", text);
}

/* One line. What cannot be read, what is of no use here and what is unknown is passed over. */
static void on_line(eg_client *c, const char *line, size_t length, double now) {
    struct message m;

    if (!read_message(line, length, &m)) return;
    if (strcmp(m.type, "ping") == 0) on_ping(c, &m);
    else if (strcmp(m.type, "welcome") == 0) on_welcome(c, &m, now);
    else if (strcmp(m.type, "command") == 0 && c->welcomed && m.has_seq && m.seq >= 0 && m.has_parameters)
        on_command(c, &m);
    else if (strcmp(m.type, "error") == 0) on_error(c, m.text);
    else if (strcmp(m.type, "bye") == 0) tell(c, "edgeguardd says bye", m.reason);
}

/* ---- The connection ---- */

/* How long to wait before the next attempt: half of it by chance, so that many clients do not come at once. */
static double next_pause_s(eg_client *c) {
    double pause_s;

    c->chance ^= c->chance << 13; /* xorshift64 */
    c->chance ^= c->chance >> 7;
    c->chance ^= c->chance << 17;
    pause_s = c->pause_s / 2.0 * (1.0 + (double)(c->chance >> 11) / 9007199254740992.0);
    c->pause_s = c->pause_s * 2.0 < LONGEST_PAUSE_S ? c->pause_s * 2.0 : LONGEST_PAUSE_S;
    return pause_s > FIRST_PAUSE_S ? pause_s : FIRST_PAUSE_S;
}

static void disconnect(eg_client *c, double now, const char *why) {
    char sentence[sizeof c->path + 64];

    snprintf(sentence, sizeof sentence, "no connection to edgeguardd at %s, trying again until it is there", c->path);
    if (!c->away_said) tell(c, sentence, why);
    c->away_said = 1;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    if (c->welcomed && c->lost_after_s >= 0.0) c->lift_at = now + c->lost_after_s;
    c->welcomed = 0;
    c->in_used = c->out_used = 0;
    c->skipping = 0;
    c->connect_at = now + next_pause_s(c);
}

static void try_connect(eg_client *c, double now) {
    struct sockaddr_un address;
    int flags;

    c->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (c->fd < 0) {
        disconnect(c, now, strerror(errno));
        return;
    }
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, c->path, strlen(c->path) + 1);
    flags = fcntl(c->fd, F_GETFL);
    /* A full queue is EAGAIN at once: it does not wait. */
    if (fcntl(c->fd, F_SETFD, FD_CLOEXEC) < 0 || flags < 0 || fcntl(c->fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0) {
        disconnect(c, now, strerror(errno));
        return;
    }
    c->connection++;
    c->heard_at = c->pinged_at = now;
    say_hello(c);
}

/* Send what the socket takes. */
static void flush(eg_client *c, double now) {
    while (c->fd >= 0 && c->out_used > 0) {
        ssize_t sent = send(c->fd, c->out, c->out_used, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (sent < 0) {
            disconnect(c, now, strerror(errno));
            return;
        }
        c->out_used -= (size_t)sent;
        memmove(c->out, c->out + sent, c->out_used);
    }
}

static int has_room(const eg_client *c) { return OUT_BYTES - c->out_used >= ANSWER_BYTES; }

/* Obey the whole lines that are there, as long as there is room for answers; keep the rest. */
static void take_lines(eg_client *c, double now) {
    size_t start = 0;
    char *end;

    while (c->fd >= 0 && has_room(c) && (end = memchr(c->in + start, '\n', c->in_used - start)) != NULL) {
        size_t length = (size_t)(end - (c->in + start));
        if (!c->skipping) on_line(c, c->in + start, length, now);
        c->skipping = 0;
        start += length + 1;
        if (!has_room(c)) flush(c, now);
    }
    if (c->fd < 0) return; /* what was read has gone with the connection */
    c->in_used -= start;
    memmove(c->in, c->in + start, c->in_used);
    if (c->skipping || (c->in_used == sizeof c->in && memchr(c->in, '\n', c->in_used) == NULL)) {
        c->skipping = 1; /* longer than a line may be: passed over to its end */
        c->in_used = 0;
    }
}

static void receive(eg_client *c, double now) {
    ssize_t got;

    if (c->fd < 0 || !has_room(c) || c->in_used == sizeof c->in) return;
    do got = recv(c->fd, c->in + c->in_used, sizeof c->in - c->in_used, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
        disconnect(c, now, got == 0 ? "it has closed the connection" : strerror(errno));
        return;
    }
    c->heard_at = now;
    c->in_used += (size_t)got;
}

static double silent_at(const eg_client *c) {
    return c->heard_at + (c->welcomed ? SILENT_HEARTBEATS * c->heartbeat_s : WELCOME_S);
}

/* Lift what an absent daemon has restricted; try again while it is away, because a handler may fail. */
static void lift(eg_client *c, double now) {
    c->lift_at = now + (c->lost_after_s > LIFT_AGAIN_S ? c->lost_after_s : LIFT_AGAIN_S);
    c->wanted = UNRESTRICTED;
    bridge(c, "the daemon has been away for too long");
}

void eg_ready(eg_client *c) {
    double now = now_s();

    if (c->busy) return; /* called by the handler */
    c->busy = 1;
    if (c->fd < 0 && now >= c->connect_at) try_connect(c, now);
    flush(c, now);
    receive(c, now);
    take_lines(c, now);
    if (c->fd >= 0 && now >= silent_at(c)) disconnect(c, now, "it does not answer");
    if (now >= c->lift_at) lift(c, now);
    if (c->welcomed && now >= c->pinged_at + c->heartbeat_s && has_room(c)) {
        c->pinged_at = now;
        if (now - c->heard_at >= c->heartbeat_s) put(c, "{\"type\":\"ping\"}\n");
    }
    if (report_is_due(c) && now >= c->report_at) say_report(c, now);
    flush(c, now);
    c->busy = 0;
}

int eg_fd(const eg_client *c) { return c->fd; }

short eg_events(const eg_client *c) { return (short)((has_room(c) ? POLLIN : 0) | (c->out_used > 0 ? POLLOUT : 0)); }

int eg_timeout_ms(const eg_client *c) {
    double due = c->lift_at, left_ms;

    if (c->fd < 0 && c->connect_at < due) due = c->connect_at;
    if (c->fd >= 0 && silent_at(c) < due) due = silent_at(c);
    if (c->welcomed && has_room(c) && c->pinged_at + c->heartbeat_s < due) due = c->pinged_at + c->heartbeat_s;
    if (report_is_due(c) && c->report_at < due) due = c->report_at;
    /* Lines that wait for room for their answer are poll's business; those that have it are not left waiting. */
    if (c->fd >= 0 && has_room(c) && memchr(c->in, '\n', c->in_used) != NULL) return 0;
    left_ms = (due - now_s()) * 1000.0 + 1.0; /* a time that is rounded down is not reached yet */
    if (left_ms <= 0.0) return 0;
    return left_ms < (double)MOST_TIMEOUT_MS ? (int)left_ms : MOST_TIMEOUT_MS;
}

int eg_wait(eg_client *c, int timeout_ms) {
    struct pollfd waiting;
    int own_ms = eg_timeout_ms(c);

    waiting.fd = c->fd;
    waiting.events = eg_events(c);
    waiting.revents = 0;
    if (timeout_ms < 0 || own_ms < timeout_ms) timeout_ms = own_ms;
    if (poll(&waiting, 1, timeout_ms) < 0) return -1;
    eg_ready(c);
    return 0;
}

void eg_finish(eg_client *c, const struct eg_command *command, struct eg_answer answer) {
    struct told *told = told_of(c, command->seq);

    if (told != NULL && told->connection != command->connection) told = NULL; /* of another epoch */
    if ((unsigned)answer.status > EG_UNSUPPORTED) answer.status = EG_FAILED;
    if ((unsigned)answer.effect > EG_EFFECT_RELEASED) answer.effect = EG_EFFECT_UNKNOWN;
    if (answer.status == EG_DONE) c->applied = after(c->applied, command);
    if (told != NULL) {
        note_ended(told, answer);
        say_told(c, told);
    }
    if (command->connection != c->connection && c->welcomed) bridge(c, "the daemon reconnected during the last order");
}

void eg_report(eg_client *c, enum eg_figure figure, long long value) {
    if ((unsigned)figure >= EG_FIGURES || value < 0 || (c->known[figure] && c->figures[figure] == value)) return;
    c->figures[figure] = value;
    c->known[figure] = c->unsent[figure] = 1;
}

int eg_connected(const eg_client *c) { return c->welcomed; }
double eg_max_batch_ratio(const eg_client *c) { return c->wanted.max_batch_ratio; }
int eg_accept_requests(const eg_client *c) { return c->wanted.accept_requests; }
int eg_model_loaded(const eg_client *c) { return c->wanted.model_loaded; }

eg_client *eg_open(const struct eg_options *options) {
    const char *target = options->target == NULL ? "self" : options->target, *path = options->path;
    eg_client *c;

    if (path == NULL) path = getenv("EDGEGUARDD_SOCKET");
    if (path == NULL || path[0] == '\0') path = DEFAULT_PATH;
    if (options->handler == NULL || options->name == NULL || name_chars(options->name) == 0 ||
        name_chars(target) == 0 || path[0] != '/' || strlen(path) >= sizeof c->path) {
        errno = EINVAL;
        return NULL;
    }
    c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    memcpy(c->name, options->name, strlen(options->name) + 1);
    memcpy(c->target, target, strlen(target) + 1);
    memcpy(c->path, path, strlen(path) + 1);
    c->handler = options->handler;
    c->log = options->log;
    c->context = options->context;
    c->supports = options->supports;
    c->fd = -1;
    c->pause_s = FIRST_PAUSE_S;
    c->connect_at = now_s();
    c->heartbeat_s = WELCOME_S;
    c->wanted = c->applied = UNRESTRICTED;
    c->lost_after_s = options->lost_after_s > 0.0 || options->lost_after_s < 0.0 ? options->lost_after_s : LOST_AFTER_S;
    c->lift_at = NEVER; /* nothing is restricted yet */
    c->chance = (((unsigned long long)getpid() << 32) ^ (unsigned long long)(c->connect_at * 1e9)) | 1; /* never 0 */
    return c;
}

void eg_close(eg_client *c) {
    if (c == NULL) return;
    flush(c, now_s()); /* an ack that is ready is not lost */
    if (c->fd >= 0) close(c->fd);
    free(c);
}
