/* Reporting and dispatch; see probe.h for what this program is. */
#include "probe.h"

#include <stdarg.h>

static const struct command *const tables[] = {
	file_commands, socket_commands, kernel_commands, syscall_commands,
	process_commands, load_commands, host_commands,
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

int main(int argc, char **argv)
{
	if (argc < 2) {
		for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
			for (const struct command *c = tables[t]; c->name; c++)
				printf("probe %s %s\n", c->name, c->usage);
		return USAGE;
	}
	return dispatch(argc - 1, argv + 1);
}
