/* Attempts on the kernel's larger doors: namespaces, io_uring, other instruction sets, the terminal. */
#include "probe.h"

#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#ifndef TIOCLINUX
#define TIOCLINUX 0x541C
#endif

static int io_uring(int argc, char **argv)
{
	struct io_uring_params params = { 0 };

	(void)argc;
	(void)argv;
	long ring = syscall(SYS_io_uring_setup, 4, &params);
	int outcome = report("io_uring_setup", ring);
	/* Without a ring these two still tell a filter (EPERM, ENOSYS) from the kernel's own EBADF. */
	long entered = syscall(SYS_io_uring_enter, (int)ring, 0, 0, 0, NULL, 0);
	outcome = either(entered < 0 && errno == EBADF ? allowed("io_uring_enter", "EBADF") : report("io_uring_enter", entered), outcome);
	long registered = syscall(SYS_io_uring_register, (int)ring, 9999, NULL, 0);
	int reached = registered < 0 && (errno == EBADF || errno == EINVAL);
	return either(reached ? allowed("io_uring_register", "reached") : report("io_uring_register", registered), outcome);
}

static long unshare_user(void *unused)
{
	(void)unused;
	return syscall(SYS_unshare, CLONE_NEWUSER);
}

static long unshare_mount_net(void *unused)
{
	(void)unused;
	return syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET);
}

static long reap(long child)
{
	if (child == 0)
		_exit(0);
	if (child > 0)
		waitpid((pid_t)child, NULL, __WALL);
	return child;
}

static long clone_user(void *unused)
{
	(void)unused;
	return reap(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0));
}

/* clone ignores the upper half of its flags; a filter that compares all of it does not see NEWUSER here. */
static long clone_user_high(void *unused)
{
	(void)unused;
	return reap(syscall(SYS_clone, (1UL << 32) | CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0));
}

static long clone3_user(void *unused)
{
	struct clone_args how = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };

	(void)unused;
	return reap(syscall(SYS_clone3, &how, sizeof how));
}

static int user_namespace(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	int outcome = in_child("unshare", unshare_user, NULL);
	outcome = either(in_child("unshare-all", unshare_mount_net, NULL), outcome);
	outcome = either(in_child("clone", clone_user, NULL), outcome);
	outcome = either(in_child("clone-high", clone_user_high, NULL), outcome);
	return either(in_child("clone3", clone3_user, NULL), outcome);
}

/* Plain fork through clone3, which libraries try first: it must work or answer ENOSYS so that they fall back. */
static long clone3_fork(void *unused)
{
	struct clone_args how = { .exit_signal = SIGCHLD };

	(void)unused;
	return reap(syscall(SYS_clone3, &how, sizeof how));
}

static int plain_clone3(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return in_child("clone3-fork", clone3_fork, NULL);
}

static int join_namespace(int argc, char **argv)
{
	int fd = open(argv[1], O_RDONLY | O_CLOEXEC);

	(void)argc;
	return report("setns", fd < 0 ? -1 : setns(fd, 0));
}

static int push_input(int argc, char **argv)
{
	char key = 'x';
	int outcome;

	(void)argc;
	(void)argv;
	outcome = report("tiocsti", ioctl(0, TIOCSTI, &key));
	/* The kernel looks at the lower 32 bits of the command; a filter may look at all 64. */
	outcome = either(report("tiocsti-high", syscall(SYS_ioctl, 0, TIOCSTI | (1UL << 32), &key)), outcome);
	char paste[2] = { 3, 0 };
	long pasted = ioctl(0, TIOCLINUX, paste);
	/* ENOTTY and EINVAL come from the driver: the call got through the filter. */
	if (pasted < 0 && (errno == ENOTTY || errno == EINVAL))
		return either(allowed("tioclinux", "reached the driver"), outcome);
	return either(report("tioclinux", pasted), outcome);
}

#if defined(__x86_64__)
static long x32_getpid(void *unused)
{
	(void)unused;
	return syscall(0x40000000 | SYS_getpid);
}

static long legacy_getpid(void *unused)
{
	long result;

	(void)unused;
	/* 20 is getpid in the 32-bit table; the 64-bit table has writev there. */
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
	if (result >= 0)
		return result;
	errno = (int)-result;
	return -1;
}
#else
static long x32_getpid(void *unused)
{
	(void)unused;
	errno = ENOSYS;
	return -1;
}
#define legacy_getpid x32_getpid
#endif

static int x32(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return in_child("x32", x32_getpid, NULL);
}

static int int80(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return in_child("int80", legacy_getpid, NULL);
}

static int load_bpf(int argc, char **argv)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1 };

	(void)argc;
	(void)argv;
	return report("bpf", syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map));
}

static int userfault(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	/* 1 is UFFD_USER_MODE_ONLY, which the kernel grants to anyone. */
	int outcome = report("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC | 1));
	return either(report("userfaultfd-device", open("/dev/userfaultfd", O_RDWR | O_CLOEXEC)), outcome);
}

static int perf(int argc, char **argv)
{
	struct perf_event_attr event = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_TASK_CLOCK,
		.exclude_kernel = 1, .exclude_hv = 1,
	};

	(void)argc;
	(void)argv;
	return report("perf_event_open", syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
}

static int keys(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	/* -3 is the session keyring; 0 is KEYCTL_GET_KEYRING_ID. */
	int outcome = report("keyctl", syscall(SYS_keyctl, 0, -3L, 1L));
	outcome = either(report("add_key", syscall(SYS_add_key, "user", "belljar-probe", "x", 1, -2L)), outcome);
	long found = syscall(SYS_request_key, "user", "belljar-no-such-key", NULL, 0);
	if (found < 0 && errno == ENOKEY)
		return either(allowed("request_key", "ENOKEY"), outcome);
	return either(report("request_key", found), outcome);
}

/* ADDR_NO_RANDOMIZE undoes address space layout randomisation for what is run next. */
static int set_personality(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return report("personality", syscall(SYS_personality, 0x0040000));
}

const struct command kernel_commands[] = {
	{ "io_uring", "", 0, io_uring },
	{ "userns", "", 0, user_namespace },
	{ "clone3-fork", "", 0, plain_clone3 },
	{ "setns", "PATH", 1, join_namespace },
	{ "tiocsti", "", 0, push_input },
	{ "x32", "", 0, x32 },
	{ "int80", "", 0, int80 },
	{ "bpf", "", 0, load_bpf },
	{ "userfaultfd", "", 0, userfault },
	{ "perf", "", 0, perf },
	{ "keyctl", "", 0, keys },
	{ "personality", "", 0, set_personality },
	{ 0 },
};
