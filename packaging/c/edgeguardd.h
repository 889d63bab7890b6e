/* Subscribe a server to edgeguardd: one header and one source, C99 and POSIX.1-2008, nothing but libc.
 *
 * Copy edgeguardd.h and edgeguardd.c into your tree. Everything runs in the thread that calls: no thread, no signal, no
 * timer is made. The client never blocks but in eg_wait(), and holds EG_MOST_BYTES of memory, whatever it is sent.
 *
 *     struct eg_options options = {.name = "my-server", .supports = EG_TRIM_KV_CACHE | EG_REJECT_REQUESTS,
 *                                  .handler = obey, .context = &server};
 *     eg_client *guard = eg_open(&options);
 *
 * In a loop of your own: poll eg_fd() for eg_events(), no longer than eg_timeout_ms(), then call eg_ready(). Without one:
 * call eg_wait(guard, 0) now and then, such as between two decoding steps, and eg_wait(guard, 1000) while idle.
 *
 * The connection is made again whenever it is lost. What is in force then stays so, until the daemon says otherwise or
 * has been away for lost_after_s. No function may be called by two threads at once, nor eg_close() by the handler. After a
 * fork the child must only call eg_close().
 *
 * Contract: docs/reference/protocol.md. Not offered here: asking for admission, and the observer's role.
 */
#ifndef EDGEGUARDD_H
#define EDGEGUARDD_H

#ifdef __cplusplus
extern "C" {
#endif

/* What one client holds: a line of the longest kind, what waits to be sent, and itself. */
#define EG_MOST_BYTES (80 * 1024)

/* What a command asks for; also the bits of eg_options.supports. EG_RESTORE comes whether it is set or not. */
enum eg_action {
    EG_TRIM_KV_CACHE = 1,   /* give memory back now, once */
    EG_REDUCE_BATCH = 2,    /* run at most max_batch_ratio of the configured batch, until told otherwise */
    EG_REJECT_REQUESTS = 4, /* refuse new requests at once, until told otherwise */
    EG_UNLOAD_MODEL = 8,    /* let running requests end, then take the model out of memory, until told otherwise */
    EG_RESTORE = 16         /* set what the parameters say, which may be less than everything */
};

enum eg_status {
    EG_DONE,        /* and the pages are back with the kernel: they are counted when the answer arrives */
    EG_FAILED,      /* it could not be done */
    EG_UNSUPPORTED, /* it cannot be done, now or later */
    EG_ACCEPTED     /* it has begun; eg_finish() will say how it ended. Does not extend the deadline */
};

enum eg_effect {
    EG_EFFECT_UNKNOWN,
    EG_EFFECT_NONE,    /* the state asked for held already */
    EG_EFFECT_LOGICAL, /* only the server's own books; its pages stay with the process */
    EG_EFFECT_RELEASED /* pages went back to the kernel */
};

/* Numbers of the server's own that help the daemon decide, see "report" in the protocol. */
enum eg_figure {
    EG_STATIC_BYTES,
    EG_KV_BYTES,
    EG_RUNNING,
    EG_WAITING,
    EG_BATCH_LIMIT,
    EG_BYTES_PER_TOKEN,
    EG_BYTES_PER_REQUEST,
    EG_FIGURES
};

/* One command. Parameters are absolute, so that obeying twice is harmless; those that do not apply are negative. */
struct eg_command {
    enum eg_action action;
    long long release_bytes;       /* how much to give back now */
    long long needed_target_bytes; /* what the server's memory should come down to */
    double max_batch_ratio;        /* share of the configured batch that may run */
    int accept_requests;           /* whether new requests may be taken */
    int model_loaded;              /* whether the model may be in memory */
    double deadline_s;             /* from when it was sent */
    const char *reason;            /* for people; gone when the handler returns */
    long long seq;                 /* 0: not a command, but what the daemon's state or its absence calls for */
    unsigned long connection;
};

struct eg_answer {
    enum eg_status status;
    enum eg_effect effect;
    long long released_bytes; /* said where the effect is EG_EFFECT_RELEASED */
    const char *message;      /* for people, or NULL */
};

/* Carries out a command, in the thread that called eg_ready() or eg_wait(); it may report, look and finish, not wait. */
typedef struct eg_answer eg_handler(void *context, const struct eg_command *command);

struct eg_options {
    const char *name;     /* what logs and status call this server: 1 to 128 characters without control characters */
    unsigned supports;    /* the actions that the handler carries out, or-ed */
    eg_handler *handler;
    void *context;        /* handed to the handler and to log */
    const char *path;     /* the daemon's socket; NULL: $EDGEGUARDD_SOCKET, else /run/edgeguardd/edgeguardd.sock */
    const char *target;   /* a configured target's name; NULL: the cgroup that this process lives in */
    double lost_after_s;  /* how long the daemon may be away before all is lifted; 0: 30 s; negative: never */
    void (*log)(void *context, const char *sentence); /* told why there is no connection, and that there is; or NULL */
};

typedef struct eg_client eg_client;

/* A client that will connect. NULL with errno EINVAL (a name, path or handler that cannot be) or ENOMEM. */
eg_client *eg_open(const struct eg_options *options);

/* Leave. What is in force stays so: whoever leaves decides. NULL is fine. */
void eg_close(eg_client *client);

/* For a loop of your own. The descriptor changes with the connection and is -1 between two; events are poll(2)'s. */
int eg_fd(const eg_client *client);
short eg_events(const eg_client *client);
int eg_timeout_ms(const eg_client *client);

/* Do what is due: connect, read, obey, answer. Never blocks, but for the handler. Call it early as often as you like. */
void eg_ready(eg_client *client);

/* Wait at most so long for something to do, and do it. -1 with errno when poll(2) fails (EINTR: a signal came), else 0. */
int eg_wait(eg_client *client, int timeout_ms);

/* How a command that was EG_ACCEPTED has ended; `command` may be a copy. Said after the reconnect when there is no connection. */
void eg_finish(eg_client *client, const struct eg_command *command, struct eg_answer answer);

/* Tell a figure that has changed. Cheap: at most ten lines a second are sent, with the latest of each. */
void eg_report(eg_client *client, enum eg_figure figure, long long value);

/* What the daemon says is in force. */
int eg_connected(const eg_client *client);
double eg_max_batch_ratio(const eg_client *client);
int eg_accept_requests(const eg_client *client);
int eg_model_loaded(const eg_client *client);

#ifdef __cplusplus
}
#endif

#endif
