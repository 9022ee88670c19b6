/* Reporting and dispatch; see probe.h for what this program is. */
#include "probe.h"

#include <stdarg.h>

static const struct command *const tables[] = {
	file_commands, socket_commands, kernel_commands, syscall_commands,
	process_commands, load_commands, host_commands, init_commands,
};

int allowed(const char *name, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("%s: allowed ", name);
	vprintf(format, arguments);
	putchar('\n');
	fflush(stdout);
	va_end(arguments);
	return ALLOWED;
}

int refused(const char *name, const char *why)
{
	printf("%s: refused %s\n", name, why);
	fflush(stdout);
	return REFUSED;
}

int report(const char *name, long result)
{
	if (result >= 0)
		return allowed(name, "%ld", result);
	const char *code = strerrorname_np(errno);
	return refused(name, code ? code : "UNKNOWN");
}

int either(int one, int other)
{
	return one == ALLOWED || other == ALLOWED ? ALLOWED : REFUSED;
}

void broken(const char *what)
{
	fprintf(stderr, "probe: %s: %s\n", what, strerror(errno));
	_exit(USAGE);
}

long number(const char *text)
{
	char *end;
	long value = strtol(text, &end, 0);

	if (*text == '\0' || *end != '\0') {
		fprintf(stderr, "probe: '%s' is not a number\n", text);
		_exit(USAGE);
	}
	return value;
}

/* Marks an exit as the child's own: it came to report. */
enum { REPORTED = 0x40 };

int in_child(const char *name, long (*attempt)(void *), void *argument)
{
	int status;
	fflush(stdout);
	pid_t child = fork();

	if (child < 0)
		broken("fork");
	if (child == 0)
		_exit(REPORTED | report(name, attempt(argument)));
	if (waitpid(child, &status, 0) < 0)
		broken("waitpid");
	if (WIFSIGNALED(status))
		return refused(name, sigabbrev_np(WTERMSIG(status)));
	if (WEXITSTATUS(status) & REPORTED)
		return WEXITSTATUS(status) & ~REPORTED;
	/* Another kernel's way to end who calls it so. */
	return refused(name, "EXIT");
}

int dispatch(int argc, char **argv)
{
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
		for (const struct command *c = tables[t]; c->name; c++) {
			if (strcmp(c->name, argv[0]) != 0)
				continue;
			if (argc - 1 < c->least_arguments) {
				fprintf(stderr, "usage: probe %s %s\n", c->name, c->usage);
				return USAGE;
			}
			return c->run(argc, argv);
		}
	fprintf(stderr, "probe: unknown subcommand '%s'\n", argv[0]);
	return USAGE;
}

/* More processes than any box of the tests has. */
static int fork_on(void)
{
	enum { MOST = 1000 };
	static pid_t made[MOST];
	int n = 0, why;

	while (n < MOST && (made[n] = fork()) > 0)
		n++;
	if (n < MOST && made[n] == 0) {
		pause();
		_exit(0);
	}
	why = errno;
	for (int i = 0; i < n; i++) {
		kill(made[i], SIGKILL);
		waitpid(made[i], NULL, 0);
	}
	return n == MOST ? allowed("forks", "%d", n) : refused("forks", strerrorname_np(why));
}

/* A gVisor that was broken into: in its place, with its rights, calls that it has no need of. */
static int broken_runsc(int argc, char **argv)
{
	static char *calls[] = { "io_uring", "keyctl", "perf", "userfaultfd", "bpf" };
	int outcome = REFUSED;

	if (argc > 1 && strcmp(argv[1], "--version") == 0)
		return puts("runsc version release-20240729.0") < 0;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		outcome = either(dispatch(1, &calls[i]), outcome);
	outcome = either(fork_on(), outcome);
	/* In a box it goes on, as one that means harm would. */
	if (argc > 1)
		pause();
	return outcome;
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');

	if (strcmp(name ? name + 1 : argv[0], "runsc") == 0)
		return broken_runsc(argc, argv);
	if (argc < 2) {
		for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
			for (const struct command *c = tables[t]; c->name; c++)
				printf("probe %s %s\n", c->name, c->usage);
		return USAGE;
	}
	return dispatch(argc - 1, argv + 1);
}
