/* The attack probe: one static program with one subcommand per thing an agent might try.
 *
 * Each attempt prints one line, `NAME: allowed DETAIL` or `NAME: refused ERRNO`. The program exits 0 when at
 * least one attempt was allowed, 1 when all were refused and 2 when it was called wrongly. It is static and
 * needs no files of its own, so that the same program runs on a desktop, in a box, and in a bare VM guest. */
#ifndef PROBE_H
#define PROBE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALLOWED = 0, REFUSED = 1, USAGE = 2 };

struct command {
	const char *name;
	const char *usage;
	int least_arguments;
	int (*run)(int argc, char **argv);
};

extern const struct command file_commands[];
extern const struct command socket_commands[];
extern const struct command kernel_commands[];
extern const struct command syscall_commands[];
extern const struct command process_commands[];
extern const struct command load_commands[];
extern const struct command host_commands[];
extern const struct command init_commands[];

/* Report one attempt. `result` is what the system call returned; errno is read when it is negative. */
int report(const char *name, long result);
int allowed(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
int refused(const char *name, const char *why);
/* Run the attempt in a child, so that a filter which kills rather than refuses is seen and survived. */
int in_child(const char *name, long (*attempt)(void *), void *argument);
/* The exit status of several attempts: allowed as soon as one was. */
int either(int one, int other);
/* Give up: the probe itself, not the box, is at fault. */
void broken(const char *what) __attribute__((noreturn));
long number(const char *text);
/* Find and run a subcommand. */
int dispatch(int argc, char **argv);

#endif
