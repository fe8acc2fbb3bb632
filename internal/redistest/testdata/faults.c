// A library for LD_PRELOAD that lets a test choose redis-server's clock and tells it what is on disk.
//
//   FAULTS_CLOCK     a file with 8 bytes: milliseconds that are added to the wall clock, as the test changes them
//   FAULTS_SYNCED    a file that gets a line "SIZE PATH" after each fsync: what a power cut leaves of that file, at least
//   FAULTS_FSYNC_US  how long an fsync takes at least, in microseconds, as on a slow disk

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_ms;
static int synced = -1;
static useconds_t delay;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  const char *name = getenv("FAULTS_CLOCK");
  if (name) {
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    void *page = mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) offset_ms = page;
    close(fd);
  }
  name = getenv("FAULTS_SYNCED");
  if (name) synced = open(name, O_WRONLY | O_APPEND | O_CLOEXEC);
  name = getenv("FAULTS_FSYNC_US");
  if (name) delay = atoi(name);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime"); // called by another constructor
  int failed = real_clock_gettime(clock, t);
  if (failed || !offset_ms || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  int64_t ns = t->tv_nsec + *offset_ms % 1000 * 1000000;
  t->tv_sec += *offset_ms / 1000 + ns / 1000000000 - (ns < 0);
  t->tv_nsec = ns % 1000000000 + (ns < 0) * 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}

// flush calls fsync or fdatasync. What is written while the call runs need not be on disk when it returns, so it takes the size before.
static int flush(int fd, const char *function) {
  struct stat before;
  int known = synced >= 0 && fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
  if (delay) usleep(delay);
  int failed = ((int (*)(int))dlsym(RTLD_NEXT, function))(fd);
  if (failed || !known) return failed;
  char link[64], path[4096], line[4200];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  n = snprintf(line, sizeof line, "%lld %s\n", (long long)before.st_size, path);
  if (write(synced, line, n) != n) abort();
  return 0;
}

int fsync(int fd) { return flush(fd, "fsync"); }
int fdatasync(int fd) { return flush(fd, "fdatasync"); }
