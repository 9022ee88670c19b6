/* System calls an agent has no business with, as a table.
 *
 * Each is called with arguments that cannot do harm even as root (bad pointers, unknown commands, names that do
 * not exist). What matters is who answers: EPERM, EACCES and ENOSYS are a refusal, any other error comes from
 * the call's own argument checks and shows that the call was reached. */
#include "probe.h"

static const char nowhere[] = "/belljar-no-such-file";

#define NAME ((long)nowhere)
#define BAD_POINTER 8L
#define BAD_FD -1L
#define BAD_COMMAND 0x7fffff00L

struct call {
	const char *name;
	long number;
	long arguments[6];
};

static const struct call calls[] = {
	/* the mount family, old and new */
	{ "mount", SYS_mount, { NAME, NAME, BAD_POINTER } },
	{ "umount2", SYS_umount2, { NAME, 0 } },
	{ "pivot_root", SYS_pivot_root, { NAME, NAME } },
	{ "chroot", SYS_chroot, { NAME } },
	{ "fsopen", SYS_fsopen, { BAD_POINTER, 0 } },
	{ "fsconfig", SYS_fsconfig, { BAD_FD, 99 } },
	{ "fsmount", SYS_fsmount, { BAD_FD, 0, 0 } },
	{ "fspick", SYS_fspick, { BAD_FD, NAME, 0 } },
	{ "open_tree", SYS_open_tree, { BAD_FD, NAME, 0 } },
	{ "move_mount", SYS_move_mount, { BAD_FD, NAME, BAD_FD, NAME, 0 } },
	{ "mount_setattr", SYS_mount_setattr, { BAD_FD, NAME, 0, BAD_POINTER, 32 } },
	{ "swapon", SYS_swapon, { NAME, 0 } },
	{ "swapoff", SYS_swapoff, { NAME } },
	{ "quotactl", SYS_quotactl, { BAD_COMMAND, NAME, 0, 0 } },
	{ "open_by_handle_at", SYS_open_by_handle_at, { BAD_FD, BAD_POINTER, 0 } },
	{ "fanotify_init", SYS_fanotify_init, { 0x7fffffff, 0 } },
	/* other processes' memory and descriptors */
	{ "ptrace", SYS_ptrace, { BAD_COMMAND, 1, 0, 0 } },
	{ "process_vm_readv", SYS_process_vm_readv, { BAD_COMMAND, BAD_POINTER, 1, BAD_POINTER, 1, 0 } },
	{ "process_vm_writev", SYS_process_vm_writev, { BAD_COMMAND, BAD_POINTER, 1, BAD_POINTER, 1, 0 } },
	{ "pidfd_getfd", SYS_pidfd_getfd, { BAD_FD, 0, 0 } },
	{ "kcmp", SYS_kcmp, { BAD_COMMAND, BAD_COMMAND, 99, 0, 0 } },
	{ "process_madvise", SYS_process_madvise, { BAD_FD, 0, 0, 0, 0 } },
	/* the kernel itself */
	{ "kexec_load", SYS_kexec_load, { 0, 0, 0, 0x7fff } },
	{ "init_module", SYS_init_module, { BAD_POINTER, 64, BAD_POINTER } },
	{ "finit_module", SYS_finit_module, { BAD_FD, BAD_POINTER, 0 } },
	{ "delete_module", SYS_delete_module, { BAD_POINTER, 0 } },
	{ "reboot", SYS_reboot, { 0, 0, 0, 0 } },
	{ "acct", SYS_acct, { NAME } },
	{ "syslog", SYS_syslog, { 99, 0, 0 } },
	{ "sethostname", SYS_sethostname, { BAD_POINTER, -1 } },
	{ "setdomainname", SYS_setdomainname, { BAD_POINTER, -1 } },
	{ "settimeofday", SYS_settimeofday, { BAD_POINTER, 0 } },
	{ "clock_settime", SYS_clock_settime, { 0, BAD_POINTER } },
#if defined(__x86_64__)
	{ "iopl", SYS_iopl, { 99 } },
	{ "ioperm", SYS_ioperm, { -1, 1, 1 } },
#endif
};

static long reach(void *which)
{
	const struct call *c = which;
	const long *a = c->arguments;
	long result = syscall(c->number, a[0], a[1], a[2], a[3], a[4], a[5]);
	int by_filter = errno == EPERM || errno == EACCES || errno == ENOSYS;

	/* Not -1: the call's own argument checks answered. */
	return result < 0 && !by_filter ? errno : result;
}

static int make_call(int argc, char **argv)
{
	int outcome = USAGE;

	(void)argc;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		if (strcmp(argv[1], "all") != 0 && strcmp(argv[1], calls[i].name) != 0)
			continue;
		int this = in_child(calls[i].name, reach, (void *)&calls[i]);
		outcome = outcome == USAGE ? this : either(this, outcome);
	}
	return outcome;
}

/* Several processes at once make the same refused call again and again; the last attempt of each is reported. */
static int hammer(int argc, char **argv)
{
	enum { PROCESSES = 4 };
	long times = number(argv[1]);
	int outcome = REFUSED;

	(void)argc;
	for (int i = 0; i < PROCESSES; i++) {
		pid_t child = fork();
		if (child < 0)
			broken("fork");
		if (child > 0)
			continue;
		long result = 0;
		for (long n = 0; n < times; n++)
			result = syscall(SYS_mount, NAME, NAME, BAD_POINTER, 0, 0);
		_exit(report("hammer", result));
	}
	for (int status; wait(&status) > 0;)
		outcome = either(WEXITSTATUS(status), outcome);
	return outcome;
}

/* Meets a wall once and then computes for ever. */
static int meet_and_spin(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	int outcome = report("mount", syscall(SYS_mount, NAME, NAME, BAD_POINTER, 0, 0));
	for (volatile int on = 1; on;)
		;
	return outcome;
}

const struct command syscall_commands[] = {
	{ "hammer", "TIMES", 1, hammer },
	{ "meet-and-spin", "", 0, meet_and_spin },
	{ "syscall", "NAME|all", 1, make_call },
	{ 0 },
};
