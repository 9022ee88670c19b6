/* Attempts on other processes, and what a process can learn about itself and its surroundings. */
#include "probe.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <time.h>
#include <sys/ptrace.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/uio.h>

extern char **environ;

static int trace(int argc, char **argv)
{
	pid_t victim = (pid_t)number(argv[1]);

	(void)argc;
	int outcome = report("ptrace", ptrace(PTRACE_SEIZE, victim, 0, 0));
	if (outcome == ALLOWED)
		ptrace(PTRACE_DETACH, victim, 0, 0);
	return outcome;
}

/* ADDRESS in the victim; harmless to read. */
static int read_memory(int argc, char **argv)
{
	char text[8];
	struct iovec here = { text, sizeof text };
	struct iovec there = { (void *)number(argv[2]), sizeof text };

	(void)argc;
	return report("vm-read", process_vm_readv((pid_t)number(argv[1]), &here, 1, &there, 1, 0));
}

/* The same through /proc, which no system call filter sees. */
static int read_proc_memory(int argc, char **argv)
{
	char path[64], text[8];

	(void)argc;
	snprintf(path, sizeof path, "/proc/%s/mem", argv[1]);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return report("proc-mem", fd < 0 ? -1 : pread(fd, text, sizeof text, number(argv[2])));
}

/* Signal 0 asks only whether a signal could be sent. */
static int send_signal(int argc, char **argv)
{
	int signal_number = argc > 2 ? (int)number(argv[2]) : 0;
	pid_t victim = (pid_t)number(argv[1]);

	int outcome = report("kill", kill(victim, signal_number));
	int fd = (int)syscall(SYS_pidfd_open, victim, 0);
	long sent = fd < 0 ? -1 : syscall(SYS_pidfd_send_signal, fd, signal_number, NULL, 0);
	return either(report("pidfd-signal", sent), outcome);
}

static int reprioritise(int argc, char **argv)
{
	(void)argc;
	return report("setpriority", setpriority(PRIO_PROCESS, (id_t)number(argv[1]), 19));
}

static int list_processes(int argc, char **argv)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;

	(void)argc;
	(void)argv;
	if (!proc)
		return report("procs", -1);
	printf("procs: allowed");
	while ((entry = readdir(proc)))
		if (isdigit((unsigned char)entry->d_name[0]))
			printf(" %s", entry->d_name);
	putchar('\n');
	return ALLOWED;
}

static int search_file(const char *path, const char *needle)
{
	static char text[1 << 20];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text);

	if (fd >= 0)
		close(fd);
	return length > 0 && memmem(text, (size_t)length, needle, strlen(needle)) != NULL;
}

/* Is TEXT in the environment or command line of any process that /proc shows? */
static int search_environments(int argc, char **argv)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	char path[300];

	(void)argc;
	if (!proc)
		return report("environs", -1);
	/* Spelled in two halves by the caller, so that the searcher's own command line does not match. */
	char needle[256];
	snprintf(needle, sizeof needle, "%s%s", argv[1], argv[2]);
	while ((entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		snprintf(path, sizeof path, "/proc/%s/environ", entry->d_name);
		if (search_file(path, needle))
			return allowed("environs", "%s", path);
		snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
		if (search_file(path, needle))
			return allowed("environs", "%s", path);
	}
	return refused("environs", "NOT-FOUND");
}

static int show_environment(int argc, char **argv)
{
	if (argc > 1) {
		const char *value = getenv(argv[1]);
		return value ? allowed("env", "%s=%s", argv[1], value) : refused("env", "UNSET");
	}
	for (char **variable = environ; *variable; variable++)
		allowed("env", "%s", *variable);
	return *environ ? ALLOWED : REFUSED;
}

/* The lines of /proc/self/status that say what a process may do. */
static int show_capabilities(int argc, char **argv)
{
	static const char *const wanted[] = { "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups" };
	char line[256];
	FILE *status = fopen("/proc/self/status", "re");

	(void)argc;
	(void)argv;
	if (!status)
		return report("caps", -1);
	while (fgets(line, sizeof line, status))
		for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
			size_t length = strlen(wanted[i]);
			if (!strncmp(line, wanted[i], length) && line[length] == ':')
				fputs(line, stdout);
		}
	fclose(status);
	return ALLOWED;
}

static int show_ids(int argc, char **argv)
{
	uid_t real, effective, saved;

	(void)argc;
	(void)argv;
	getresuid(&real, &effective, &saved);
	return allowed("ids", "uid=%u euid=%u suid=%u gid=%u egid=%u", real, effective, saved, getgid(), getegid());
}

static int become(int argc, char **argv)
{
	(void)argc;
	return report("setuid", setuid((uid_t)number(argv[1])));
}

/* A shared memory segment any process of the same IPC namespace may attach by number. */
static int make_segment(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return report("shm-make", shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0666));
}

static int attach_segment(int argc, char **argv)
{
	void *memory = shmat((int)number(argv[1]), NULL, 0);

	(void)argc;
	return report("shm-attach", memory == (void *)-1 ? -1 : 0);
}

static int remove_segment(int argc, char **argv)
{
	(void)argc;
	return report("shm-remove", shmctl((int)number(argv[1]), IPC_RMID, NULL));
}

/* Start a set-user-id program and let it say who it became. */
static int execute(int argc, char **argv)
{
	(void)argc;
	execv(argv[1], argv + 1);
	return report("execute", -1);
}

/* Descriptors the program was started with; 0, 1 and 2 are its own. */
static int list_descriptors(int argc, char **argv)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[512];
	int extra = 0;

	(void)argc;
	(void)argv;
	if (!fds)
		return report("fds", -1);
	while ((entry = readdir(fds))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] == '.' || fd <= 2 || fd == dirfd(fds))
			continue;
		ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = '\0';
		allowed("fds", "%d %s", fd, target);
		extra++;
	}
	return extra ? ALLOWED : refused("fds", "NONE");
}

/* Run another subcommand once standard input ends: the caller decides when "after the launch" is. */
static int after_input(int argc, char **argv)
{
	char text[64];

	puts("after-input: allowed waiting");
	fflush(stdout);
	while (read(0, text, sizeof text) > 0)
		;
	return dispatch(argc - 1, argv + 1);
}

/* Wait for a child's pid, then keep its parent around for others to look at. */
static int say_and_wait(int argc, char **argv)
{
	char text[64];

	(void)argc;
	(void)argv;
	printf("waiting: allowed %d\n", (int)getpid());
	fflush(stdout);
	while (read(0, text, sizeof text) > 0)
		;
	return ALLOWED;
}

enum { TIMERS = 64 };
static timer_t timers[TIMERS];

/* Winds every timer up again: a stop takes those with it whose signal is just under way. */
static void go_on(int signal)
{
	(void)signal;
	for (int i = 0; i < TIMERS; i++) {
		/* Half of them soon, half of them over the next third of a second: some are always to come. */
		struct itimerspec when = { .it_value.tv_nsec = (i % 2 ? 10000000 : 200000) * (i / 2 + 1) };
		timer_settime(timers[i], 0, &when, NULL);
	}
}

/* Counts in FILE for ever, and has itself continued thousands of times a second. */
static int self_continue(int argc, char **argv)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT };
	struct sigaction heed = { .sa_handler = go_on, .sa_flags = SA_RESTART };

	(void)argc;
	sigaction(SIGCONT, &heed, NULL);
	for (int i = 0; i < TIMERS; i++)
		if (timer_create(CLOCK_MONOTONIC, &event, &timers[i]) < 0)
			broken("timer");
	go_on(SIGCONT);
	int fd = open(argv[1], O_CREAT | O_WRONLY | O_APPEND, 0600);
	while (write(fd, "x", 1) == 1)
		;
	return report("self-continue", -1);
}

/* A child that whoever traces us would not get to see. */
static int untraced_child(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	long child = syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, NULL, NULL, NULL, 0);
	if (child == 0)
		_exit(0);
	if (child > 0)
		waitpid((pid_t)child, NULL, 0);
	return report("untraced", child);
}

/* A child stops itself; its parent sees that, continues it, and sees it end. */
static int stop_and_go(int argc, char **argv)
{
	int status;

	(void)argc;
	(void)argv;
	pid_t child = fork();
	if (child == 0) {
		raise(SIGSTOP);
		_exit(3);
	}
	if (child < 0 || waitpid(child, &status, WUNTRACED) != child)
		broken("wait");
	if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
		return refused("stop-and-go", "not stopped");
	kill(child, SIGCONT);
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return refused("stop-and-go", "not ended");
	return allowed("stop-and-go", "%d", WEXITSTATUS(status));
}

const struct command process_commands[] = {
	{ "untraced", "", 0, untraced_child },
	{ "stop-and-go", "", 0, stop_and_go },
	{ "self-continue", "FILE", 1, self_continue },
	{ "ptrace", "PID", 1, trace },
	{ "vm-read", "PID ADDRESS", 2, read_memory },
	{ "proc-mem", "PID ADDRESS", 2, read_proc_memory },
	{ "kill", "PID [SIGNAL]", 1, send_signal },
	{ "setpriority", "PID", 1, reprioritise },
	{ "procs", "", 0, list_processes },
	{ "environs", "TEXT-HALF TEXT-HALF", 2, search_environments },
	{ "env", "[NAME]", 0, show_environment },
	{ "caps", "", 0, show_capabilities },
	{ "ids", "", 0, show_ids },
	{ "setuid", "UID", 1, become },
	{ "shm-make", "", 0, make_segment },
	{ "shm-attach", "ID", 1, attach_segment },
	{ "shm-remove", "ID", 1, remove_segment },
	{ "execute", "PROGRAM ARGUMENT…", 1, execute },
	{ "fds", "", 0, list_descriptors },
	{ "after-input", "SUBCOMMAND…", 1, after_input },
	{ "wait", "", 0, say_and_wait },
	{ 0 },
};
