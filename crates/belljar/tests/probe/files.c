/* Attempts on the file system: reading, writing, creating, and making things that outlive the box. */
#include "probe.h"

#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static int read_file(int argc, char **argv)
{
	char text[128];
	int fd = open(argv[1], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	ssize_t length;

	(void)argc;
	if (fd < 0)
		return report("read", -1);
	length = read(fd, text, sizeof text - 1);
	if (length < 0)
		return report("read", -1);
	text[length] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return allowed("read", "%s", text);
}

static int list_directory(int argc, char **argv)
{
	int fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)argc;
	if (fd < 0)
		return report("list", -1);
	char entries[4096];
	return report("list", syscall(SYS_getdents64, fd, entries, sizeof entries));
}

/* A one-byte write through an existing name; never creates. */
static int write_file(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC);

	(void)argc;
	return report("write", fd < 0 ? -1 : write(fd, "!", 1));
}

/* Opens for writing and leaves it at that: for files the host could not do without if the wall were missing. */
static int open_to_write(int argc, char **argv)
{
	(void)argc;
	return report("open-to-write", open(argv[1], O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC));
}

static int create_file(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	(void)argc;
	return report("create", fd < 0 ? -1 : write(fd, "made in the box\n", 16));
}

/* Asks without doing. */
static int may_write(int argc, char **argv)
{
	(void)argc;
	return report("may-write", faccessat(AT_FDCWD, argv[1], W_OK, AT_EACCESS));
}

static int truncate_file(int argc, char **argv)
{
	(void)argc;
	return report("truncate", truncate(argv[1], 0));
}

static int make_directory(int argc, char **argv)
{
	(void)argc;
	return report("mkdir", mkdir(argv[1], 0755));
}

static int rename_over(int argc, char **argv)
{
	(void)argc;
	return report("rename-over", rename(argv[1], argv[2]));
}

static int exchange(int argc, char **argv)
{
	(void)argc;
	return report("exchange", renameat2(AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE));
}

static int make_symlink(int argc, char **argv)
{
	(void)argc;
	return report("symlink", symlink(argv[1], argv[2]));
}

static int make_link(int argc, char **argv)
{
	(void)argc;
	return report("link", link(argv[1], argv[2]));
}

static int remove_file(int argc, char **argv)
{
	(void)argc;
	return report("unlink", unlink(argv[1]));
}

static int remove_directory(int argc, char **argv)
{
	(void)argc;
	return report("rmdir", rmdir(argv[1]));
}

static int set_times(int argc, char **argv)
{
	(void)argc;
	return report("touch", utimensat(AT_FDCWD, argv[1], NULL, 0));
}

static int set_attribute(int argc, char **argv)
{
	(void)argc;
	return report("setxattr", setxattr(argv[1], "user.belljar", "1", 1, 0));
}

static int change_mode(int argc, char **argv)
{
	(void)argc;
	return report("chmod", chmod(argv[1], (mode_t)strtol(argv[2], NULL, 8)));
}

static int change_owner(int argc, char **argv)
{
	(void)argc;
	return report("chown", chown(argv[1], (uid_t)number(argv[2]), (gid_t)number(argv[2])));
}

/* Did the attempt leave a set-id bit behind? A call that "succeeds" with the bit cleared is a refusal. */
static int set_id_result(const char *name, const char *path, long result)
{
	struct stat made;

	if (result < 0)
		return report(name, -1);
	if (stat(path, &made) < 0)
		return report(name, -1);
	if (made.st_mode & (S_ISUID | S_ISGID))
		return allowed(name, "mode %o", made.st_mode & 07777);
	return refused(name, "BITS-CLEARED");
}

static long openat2_with_mode(const char *path, mode_t mode)
{
	struct open_how how = { .flags = O_CREAT | O_WRONLY | O_CLOEXEC, .mode = mode };

	return syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

static void fresh_name(char *path, size_t size, const char *directory, const char *name)
{
	snprintf(path, size, "%s/set-id-%s", directory, name);
	unlink(path);
}

static long chmod_by(const char *way, const char *path, mode_t mode)
{
	/* The kernel looks at 16 bits of a mode; a filter that compares all 64 is fooled by the others. */
	unsigned long high = (1UL << 32) | (1UL << 16) | mode;
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0755);

	if (fd < 0)
		broken(path);
	if (!strcmp(way, "chmod"))
		return syscall(SYS_chmod, path, mode);
	if (!strcmp(way, "chmod-high"))
		return syscall(SYS_chmod, path, high);
	if (!strcmp(way, "fchmod"))
		return syscall(SYS_fchmod, fd, mode);
	if (!strcmp(way, "fchmod-high"))
		return syscall(SYS_fchmod, fd, high);
	if (!strcmp(way, "fchmodat"))
		return syscall(SYS_fchmodat, AT_FDCWD, path, mode);
	return syscall(SYS_fchmodat2, AT_FDCWD, path, mode, 0);
}

static long create_by(const char *way, const char *path, mode_t mode)
{
	if (!strcmp(way, "open"))
		return syscall(SYS_open, path, O_CREAT | O_WRONLY, mode);
	if (!strcmp(way, "openat"))
		return syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, mode);
	if (!strcmp(way, "openat2"))
		return openat2_with_mode(path, mode);
	if (!strcmp(way, "creat"))
		return syscall(SYS_creat, path, mode);
	if (!strcmp(way, "mknod"))
		return syscall(SYS_mknod, path, S_IFREG | mode, 0);
	return syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | mode, 0);
}

/* Every way to leave a set-user-id or set-group-id file behind in a directory the host sees. */
static int set_id(int argc, char **argv)
{
	static const char *const changes[] = { "chmod", "chmod-high", "fchmod", "fchmod-high", "fchmodat", "fchmodat2" };
	static const char *const creations[] = { "open", "openat", "openat2", "creat", "mknod", "mknodat" };
	static const mode_t modes[] = { 04755, 02755 };
	char path[4096], name[64];
	int outcome = REFUSED;

	(void)argc;
	umask(0);
	for (size_t m = 0; m < 2; m++) {
		const char *kind = modes[m] & S_ISUID ? "suid" : "sgid";
		for (size_t i = 0; i < 6; i++) {
			snprintf(name, sizeof name, "%s-%s", kind, changes[i]);
			fresh_name(path, sizeof path, argv[1], name);
			outcome = either(set_id_result(name, path, chmod_by(changes[i], path, modes[m])), outcome);
		}
		for (size_t i = 0; i < 6; i++) {
			snprintf(name, sizeof name, "%s-%s", kind, creations[i]);
			fresh_name(path, sizeof path, argv[1], name);
			outcome = either(set_id_result(name, path, create_by(creations[i], path, modes[m])), outcome);
		}
	}
	return outcome;
}

static int make_node(int argc, char **argv)
{
	mode_t kind = S_IFCHR;

	(void)argc;
	if (!strcmp(argv[2], "block"))
		kind = S_IFBLK;
	else if (!strcmp(argv[2], "fifo"))
		kind = S_IFIFO;
	/* 1:3 is /dev/null: harmless where the attempt succeeds. */
	return report("mknod", mknod(argv[1], kind | 0600, kind == S_IFIFO ? 0 : makedev(1, 3)));
}

static int open_device(int argc, char **argv)
{
	(void)argc;
	return report("open-device", open(argv[1], O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

/* Opens without O_NONBLOCK would wait for a reader for ever; ENXIO says nobody listens. */
static int write_fifo(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_NONBLOCK | O_CLOEXEC);

	(void)argc;
	return report("fifo-write", fd < 0 ? -1 : write(fd, "from the box\n", 13));
}

/* Walk up from a directory descriptor with "..", the classic way out of a chroot. */
static int climb_out(int argc, char **argv)
{
	int fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	(void)argc;
	for (int step = 0; fd >= 0 && step < 64; step++)
		fd = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return report("climb", -1);
	return report("climb", openat(fd, argv[1] + (argv[1][0] == '/'), O_RDONLY | O_CLOEXEC));
}

/* File handles name inodes directly, past every mount: the "shocker" way out of a container. */
static int open_handle(int argc, char **argv)
{
	struct {
		struct file_handle head;
		unsigned char bytes[MAX_HANDLE_SZ];
	} handle = { .head.handle_bytes = MAX_HANDLE_SZ };
	int mount_id, root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)argc;
	if (name_to_handle_at(AT_FDCWD, argv[1], &handle.head, &mount_id, 0) < 0)
		return report("open-handle", -1);
	int mount = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (mount < 0)
		mount = root;
	return report("open-handle", open_by_handle_at(mount, &handle.head, O_RDONLY));
}

/* An anonymous file of executable memory: allowed, but counted against the memory limit. */
static int run_memfd(int argc, char **argv)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);

	(void)argc;
	(void)argv;
	return report("memfd", fd < 0 ? -1 : ftruncate(fd, 4096));
}

const struct command file_commands[] = {
	{ "read", "PATH", 1, read_file },
	{ "list", "DIRECTORY", 1, list_directory },
	{ "write", "PATH", 1, write_file },
	{ "open-to-write", "PATH", 1, open_to_write },
	{ "create", "PATH", 1, create_file },
	{ "truncate", "PATH", 1, truncate_file },
	{ "mkdir", "PATH", 1, make_directory },
	{ "rename-over", "FROM TO", 2, rename_over },
	{ "exchange", "ONE OTHER", 2, exchange },
	{ "symlink", "TARGET LINK", 2, make_symlink },
	{ "link", "FILE LINK", 2, make_link },
	{ "unlink", "PATH", 1, remove_file },
	{ "rmdir", "PATH", 1, remove_directory },
	{ "touch", "PATH", 1, set_times },
	{ "setxattr", "PATH", 1, set_attribute },
	{ "chmod", "PATH OCTAL", 2, change_mode },
	{ "chown", "PATH ID", 2, change_owner },
	{ "set-id", "DIRECTORY", 1, set_id },
	{ "may-write", "PATH", 1, may_write },
	{ "mknod", "PATH char|block|fifo", 2, make_node },
	{ "open-device", "PATH", 1, open_device },
	{ "fifo-write", "PATH", 1, write_fifo },
	{ "climb", "PATH", 1, climb_out },
	{ "open-handle", "PATH", 1, open_handle },
	{ "memfd", "", 0, run_memfd },
	{ 0 },
};
