#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Looks up the names in the file RINGFENCE_TEST_NAMES, each line a name and its addresses, after RINGFENCE_TEST_LOOKUP_MS: as
   the C library does whose first name server is dead. All else goes to the C library at once. */
#include <stdio.h>

typedef int lookup_of(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    lookup_of *real = (lookup_of *)dlsym(RTLD_NEXT, "getaddrinfo");
    size_t length = node ? strlen(node) : 0;
    if (length < 5 || strcmp(node + length - 5, ".test") != 0) return real(node, service, hints, found);
    const char *path = getenv("RINGFENCE_TEST_NAMES"), *delay = getenv("RINGFENCE_TEST_LOOKUP_MS");
    long ms = delay ? atol(delay) : 0;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return EAI_AGAIN;
    char line[1024];
    int result = EAI_NONAME;
    while (fgets(line, sizeof line, file)) {
        char *rest, *word = strtok_r(line, " \n", &rest);
        if (!word || strcmp(word, node) != 0) continue;
        struct addrinfo **last = found;
        while ((word = strtok_r(NULL, " \n", &rest)) && (result = real(word, service, hints, last)) == 0)
            while (*last) last = &(*last)->ai_next;
        break;
    }
    fclose(file);
    return result;
}
