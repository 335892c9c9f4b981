/* Bends what one process asks of its machine: flushes, lookups of names, and clocks. The harness shares the block of
   numbers that says how, and reads there how often it was done. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* As `Word` in bent.rs. */
static struct bent {
  _Atomic int64_t flush_ms, lookup_ms, lookup_fails, address, first_address, clocks, rate_ppm, asleep_ms;
  _Atomic int64_t flushes, lookups, readings;
} *bent;

static void pause_ms(int64_t ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&time, &time) && errno == EINTR) {}
}

/* In small steps: it ends when the number is made small. */
static void flush(void) {
  if (!bent || !bent->flush_ms) return;
  bent->flushes++;
  for (int64_t slept = 0; slept < bent->flush_ms; slept += 10) pause_ms(10);
}

int fdatasync(int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
  flush();
  return real(file);
}

int fsync(int file) {
  int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
  flush();
  return real(file);
}

/* Names that end in .test are known here alone. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
  size_t length = name ? strlen(name) : 0;
  if (!bent || length < 5 || strcmp(name + length - 5, ".test")) return real(name, service, hints, found);
  bent->lookups++;
  pause_ms(bent->lookup_ms);
  if (bent->lookup_fails) return EAI_AGAIN;
  _Atomic int64_t *addresses[] = {&bent->first_address, &bent->address};
  for (int i = 0; i < 2; i++) {
    char text[INET_ADDRSTRLEN];
    struct in_addr address = {htonl(*addresses[i])};
    if (!address.s_addr) continue;
    inet_ntop(AF_INET, &address, text, sizeof text);
    int failed = real(text, service, hints, found);
    if (failed) return failed;
    while (*found) found = &(*found)->ai_next;
  }
  return 0;
}

/* CLOCK_MONOTONIC and CLOCK_BOOTTIME run at another rate, as while their machine's clock is slewed, which
   CLOCK_MONOTONIC_RAW does not show. While the machine sleeps, CLOCK_BOOTTIME alone runs on. */
static int bent_clock(clockid_t clock, struct timespec *now) {
  static _Atomic int64_t first[CLOCK_BOOTTIME + 1];
  if (syscall(SYS_clock_gettime, clock, now)) return -errno;
  int slewed = clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME;
  int sleeps = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW;
  if (!slewed && !sleeps) return 0;
  bent->readings++;
  int64_t ns = now->tv_sec * 1000000000 + now->tv_nsec, zero = 0;
  if (slewed) {
    atomic_compare_exchange_strong(&first[clock], &zero, ns);
    ns += (__int128)(ns - first[clock]) * bent->rate_ppm / 1000000;
  }
  if (sleeps) ns -= bent->asleep_ms * 1000000;
  now->tv_sec = ns / 1000000000;
  now->tv_nsec = ns % 1000000000;
  return 0;
}

/* Not every program asks the C library. So the kernel's own function, which is mapped into the process, is replaced. */
static void bend_clocks(void) {
#ifdef __x86_64__
  char *image = (char *)getauxval(AT_SYSINFO_EHDR);
  if (!image) return;
  Elf64_Ehdr *head = (Elf64_Ehdr *)image;
  Elf64_Shdr *sections = (Elf64_Shdr *)(image + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    Elf64_Sym *symbols = (Elf64_Sym *)(image + sections[i].sh_offset);
    char *names = image + sections[sections[i].sh_link].sh_offset;
    for (uint64_t j = 0; j < sections[i].sh_size / sizeof *symbols; j++) {
      if (strcmp(names + symbols[j].st_name, "__vdso_clock_gettime")) continue;
      char jump[12] = "\x48\xb8........\xff\xe0"; /* movabs rax, bent_clock; jmp rax */
      int (*to)(clockid_t, struct timespec *) = bent_clock;
      memcpy(jump + 2, &to, sizeof to);
      char *at = image + symbols[j].st_value, *page = (char *)((uintptr_t)at & ~4095UL);
      if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) &&
          mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
      memcpy(at, jump, sizeof jump);
      return;
    }
  }
#endif
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("RINGFENCE_BENT");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *at = mmap(0, sizeof *bent, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return;
  bent = at;
  if (bent->clocks) bend_clocks();
}
