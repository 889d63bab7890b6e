/* What edgeguardd is measured against: the least program that does the job, done right.
 *
 *     epoll_loop SOCKET FILE KEY
 *
 * Waits for one subscriber on a Unix socket, then tells it of each rise of a counter in a kernel file
 * (memory.events) with the line that edgeguardd would send. It knows one file and one subscriber, no limits, no
 * policy, no answers, and does not survive the cgroup: it is a lower bound, not a rival.
 *
 * kernfs files are always readable; EPOLLPRI says that one changed, and reading it arms it again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what)
{
    fprintf(stderr, "epoll_loop: cannot %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The number after KEY at the beginning of a line; the file is read whole, in one piece, so it is consistent. */
static unsigned long long counter(int file, const char *key)
{
    char text[1024];
    ssize_t size = pread(file, text, sizeof text - 1, 0);
    size_t length = strlen(key);
    if (size < 0)
        fail("read the counters");
    text[size] = 0;
    for (char *line = text; line != NULL && *line != 0;) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            return strtoull(line + length, NULL, 10);
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    fprintf(stderr, "epoll_loop: no counter %s in the file\n", key);
    exit(1);
}

static int subscriber(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0)
        fail("make a socket");
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        fail("use the socket's path");
    }
    strcpy(address.sun_path, path);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 1) < 0)
        fail("listen");
    int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0)
        fail("accept the subscriber");
    close(listener);
    return peer;
}

static void tell(int peer, unsigned long long seq, const char *key, unsigned long long risen)
{
    char line[512];
    int size = snprintf(line, sizeof line,
                        "{\"type\":\"command\",\"v\":1,\"seq\":%llu,\"target\":\"llm\",\"action\":\"trim_kv_cache\","
                        "\"parameters\":{\"release_bytes\":8388608,\"needed_target_bytes\":33554432},"
                        "\"level\":\"high\",\"reason\":\"%s counted up by %llu\",\"deadline_s\":5.0}\n",
                        seq, key, risen);
    for (int sent = 0; sent < size;) {
        ssize_t now = send(peer, line + sent, (size_t)(size - sent), MSG_NOSIGNAL);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            exit(errno == EPIPE || errno == ECONNRESET ? 0 : 1);
        sent += (int)now;
    }
}

int main(int count, char **words)
{
    if (count != 4) {
        fprintf(stderr, "usage: epoll_loop SOCKET FILE KEY\n");
        return 2;
    }
    const char *key = words[3];
    int peer = subscriber(words[1]);
    int file = open(words[2], O_RDONLY | O_CLOEXEC);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    if (file < 0 || poll < 0)
        fail("open the counters");
    struct epoll_event changes = {.events = EPOLLPRI, .data.fd = file};
    struct epoll_event ends = {.events = EPOLLRDHUP, .data.fd = peer};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, file, &changes) < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, peer, &ends) < 0)
        fail("watch");
    unsigned long long seen = counter(file, key), seq = 0;
    for (;;) {
        struct epoll_event woken;
        int found = epoll_wait(poll, &woken, 1, -1);
        if (found < 0 && errno == EINTR)
            continue;
        if (found < 0)
            fail("wait");
        if (woken.data.fd == peer)
            return 0;
        unsigned long long now = counter(file, key);
        /* A wake-up may carry no change, and a counter that fell belongs to a new cgroup. */
        if (now > seen)
            tell(peer, ++seq, key, now - seen);
        seen = now;
    }
}
