/* A service built on sd-event, as any other: it asks to be told of memory pressure, and gives back what it can spare.
 * Says "watching" when it does, "pressure" each time; ends on SIGINT. */

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <systemd/sd-event.h>

static int on_pressure(sd_event_source *source, void *userdata) {
    (void) source;
    (void) userdata;
    sd_event_trim_memory();
    puts("pressure");
    fflush(stdout);
    return 0;
}

static int fail(const char *what, int error) {
    fprintf(stderr, "cannot %s: %s\n", what, strerror(-error));
    return 1;
}

int main(void) {
    sd_event *event = NULL;
    sigset_t stop;
    int r = sd_event_default(&event);

    if (r < 0)
        return fail("make an event loop", r);
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    r = sd_event_add_signal(event, NULL, SIGINT, NULL, NULL);
    if (r < 0)
        return fail("wait for SIGINT", r);
    r = sd_event_add_memory_pressure(event, NULL, on_pressure, NULL);
    if (r < 0)
        return fail("watch memory pressure", r);
    puts("watching");
    fflush(stdout);
    r = sd_event_loop(event);
    sd_event_unref(event);
    return r < 0 ? fail("go on", r) : 0;
}
