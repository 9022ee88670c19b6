/* Attempts on the box's pid 1 that need no right but being the same user: its limits, its turn, its memory, its signals. */
#include "probe.h"

#include <linux/kcmp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { WHO_PROCESS = 1, WHO_USER = 3, IDLE = 3 << 13 };

struct sched_attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static int any;

static void attempt(const char *name, long result)
{
	any = report(name, result) == ALLOWED || any;
}

/* With PID in the low half of the register, which is all that the kernel looks at, and something in the other. */
static void change_limits(long pid)
{
	char name[32];

	for (int which = 0; which < RLIM_NLIMITS; which++) {
		struct rlimit none = { 0, 0 };
		snprintf(name, sizeof name, "prlimit-%d", which);
		attempt(name, syscall(SYS_prlimit64, pid, which, &none, NULL));
	}
	struct rlimit found;
	attempt("prlimit-look", syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, NULL, &found));
}

static void change_turn(long pid)
{
	struct sched_param parameter = { 0 };
	struct sched_attributes attributes = { .size = sizeof attributes, .policy = SCHED_BATCH };
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	attempt("setpriority", syscall(SYS_setpriority, PRIO_PROCESS, pid, 19));
	attempt("setpriority-user", syscall(SYS_setpriority, PRIO_USER, 0, 19));
	attempt("setpriority-uid", syscall(SYS_setpriority, PRIO_USER, getuid(), 19));
	attempt("ioprio", syscall(SYS_ioprio_set, WHO_PROCESS, pid, IDLE));
	attempt("ioprio-user", syscall(SYS_ioprio_set, WHO_USER, 0, IDLE));
	attempt("ioprio-uid", syscall(SYS_ioprio_set, WHO_USER, getuid(), IDLE));
	attempt("scheduler", syscall(SYS_sched_setscheduler, pid, SCHED_IDLE, &parameter));
	attempt("parameter", syscall(SYS_sched_setparam, pid, &parameter));
	attempt("attributes", syscall(SYS_sched_setattr, pid, &attributes, 0));
	attempt("affinity", syscall(SYS_sched_setaffinity, pid, sizeof one, &one));
}

static void change_memory(long pid)
{
	unsigned long nodes = 1;
	void *page = &nodes;
	int node = 0, status;
	int handle = (int)syscall(SYS_pidfd_open, pid, 0);

	attempt("migrate-pages", syscall(SYS_migrate_pages, pid, 8 * sizeof nodes, &nodes, &nodes));
	attempt("move-pages", syscall(SYS_move_pages, pid, 1, &page, &node, &status, 0));
	attempt("mrelease", handle < 0 ? -1 : syscall(SYS_process_mrelease, handle, 0));
	attempt("getfd", handle < 0 ? -1 : syscall(SYS_pidfd_getfd, handle, 0, 0));
	attempt("core-cookie", prctl(PR_SCHED_CORE, PR_SCHED_CORE_SHARE_TO, pid, 0, 0));
	attempt("join-group", setpgid(pid, 0));
	attempt("kcmp", syscall(SYS_kcmp, pid, getpid(), KCMP_FILES, 0, 0));
}

static void change_files(void)
{
	static const char *const files[][2] = {
		{ "oom_score_adj", "1000" }, { "oom_adj", "15" }, { "coredump_filter", "0" },
		{ "timerslack_ns", "1000000000" }, { "autogroup", "19" }, { "sched", "0" },
		{ "clear_refs", "1" }, { "comm", "deaf" }, { "mem", "x" }, { "uid_map", "0 0 1" },
		{ "setgroups", "allow" }, { "loginuid", "0" }, { "attr/current", "x" },
		{ "task/1/comm", "deaf" }, { "task/1/oom_score_adj", "1000" }, { "fd/0", "x" },
	};
	char path[64];

	for (size_t at = 0; at < sizeof files / sizeof *files; at++) {
		snprintf(path, sizeof path, "/proc/1/%s", files[at][0]);
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		attempt(files[at][0], fd < 0 ? -1 : write(fd, files[at][1], strlen(files[at][1])));
	}
}

static int reach(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	/* What a stranger's pid 1 is asked is the control's: whoever may do this to it may do it here. */
	change_limits(1);
	change_limits(0x100000001L);
	change_turn(1);
	change_turn(0x7fffffff00000001L);
	change_memory(1);
	change_files();
	return any ? ALLOWED : REFUSED;
}

/* Every signal, every way. The kernel takes some of these calls and does nothing; what counts is what becomes of the box. */
static int signal_all_ways(int argc, char **argv)
{
	int handle = (int)syscall(SYS_pidfd_open, 1, 0);

	(void)argc;
	(void)argv;
	for (int which = 1; which <= 64; which++) {
		siginfo_t info = { .si_code = SI_QUEUE };
		info.si_signo = which;
		kill(1, which);
		syscall(SYS_tkill, 1, which);
		syscall(SYS_tgkill, 1, 1, which);
		syscall(SYS_rt_sigqueueinfo, 1, which, &info);
		syscall(SYS_rt_tgsigqueueinfo, 1, 1, which, &info);
		syscall(SYS_pidfd_send_signal, handle, which, NULL, 0);
	}
	return allowed("signals-to-init", "sent");
}

/* The same by news of a socket, which is told as any signal that its owner likes. */
static int signal_by_news(int argc, char **argv)
{
	int pair[2];

	(void)argc;
	(void)argv;
	for (int which = 1; which <= 64; which++) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
			fcntl(pair[0], F_SETOWN, 1);
			fcntl(pair[0], F_SETSIG, which);
			fcntl(pair[0], F_SETFL, O_ASYNC | O_NONBLOCK);
			if (write(pair[1], "x", 1) < 0)
				broken("write");
			close(pair[0]);
			close(pair[1]);
		}
	}
	return allowed("news-to-init", "sent");
}

/* What everybody may do to themselves and to their children, and programs do. */
static int change_own(int argc, char **argv)
{
	struct rlimit found;
	struct sched_param parameter = { 0 };
	cpu_set_t own;
	int outcome;

	(void)argc;
	(void)argv;
	pid_t child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	outcome = report("own-limits", prlimit(0, RLIMIT_NOFILE, NULL, &found));
	report("own-limits-set", prlimit(0, RLIMIT_NOFILE, &found, NULL));
	report("own-limits-by-number", prlimit(getpid(), RLIMIT_NOFILE, &found, NULL));
	report("childs-limits", prlimit(child, RLIMIT_NOFILE, &found, NULL));
	report("own-priority", setpriority(PRIO_PROCESS, 0, 5));
	report("own-group", setpriority(PRIO_PGRP, 0, 5));
	report("childs-priority", setpriority(PRIO_PROCESS, (id_t)child, 6));
	report("own-ioprio", syscall(SYS_ioprio_set, WHO_PROCESS, 0, IDLE));
	report("own-scheduler", sched_setscheduler(0, SCHED_BATCH, &parameter));
	report("own-affinity-look", sched_getaffinity(0, sizeof own, &own));
	report("own-affinity", sched_setaffinity(0, sizeof own, &own));
	kill(child, SIGKILL);
	return outcome;
}

const struct command init_commands[] = {
	{ "reach-init", "", 0, reach },
	{ "signal-init", "", 0, signal_all_ways },
	{ "news-to-init", "", 0, signal_by_news },
	{ "change-own", "", 0, change_own },
	{ 0 }
};
