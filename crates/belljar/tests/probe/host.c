/* The tests' own helpers, run outside the box: a terminal to type on, and a network of one's own. Here because a
 * minimal guest has no expect, no script(1) and no ip(8). */
#include "probe.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <grp.h>

enum { TRANSCRIPT = 1 << 20 };

static char transcript[TRANSCRIPT];
static size_t heard, matched;

/* Take in what the terminal shows. False when its last user has gone. */
static int listen_once(int terminal)
{
	if (heard == TRANSCRIPT)
		broken("transcript too long");
	ssize_t length = read(terminal, transcript + heard, TRANSCRIPT - heard);
	if (length <= 0)
		return 0;
	if (write(1, transcript + heard, (size_t)length) != length)
		broken("stdout");
	heard += (size_t)length;
	return 1;
}

static void expect(int terminal, const char *text)
{
	for (;;) {
		char *found = memmem(transcript + matched, heard - matched, text, strlen(text));
		if (found) {
			matched = (size_t)(found - transcript) + strlen(text);
			return;
		}
		if (!listen_once(terminal)) {
			fprintf(stderr, "\nprobe: the terminal closed before it showed '%s'\n", text);
			_exit(USAGE);
		}
	}
}

static void type(int terminal, const char *text)
{
	for (; *text; text++) {
		char key = *text;
		if (key == '\\' && text[1]) {
			text++;
			key = *text == 'n' ? '\r' : *text == 'c' ? 3 : *text == 'z' ? 26 : *text == 'd' ? 4 : *text;
		}
		if (write(terminal, &key, 1) != 1)
			broken("typing");
	}
}

static void resize(int terminal, const char *size)
{
	struct winsize window = { 0 };

	if (sscanf(size, "%hux%hu", &window.ws_row, &window.ws_col) != 2 || ioctl(terminal, TIOCSWINSZ, &window) < 0)
		broken(size);
}

static int exit_status(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Start a program on a terminal of its own and play a script to it: -e waits for text to appear, -s types
 * (\n Enter, \c Ctrl-C, \z Ctrl-Z, \d Ctrl-D), -w changes the window's size. */
static int on_terminal(int argc, char **argv)
{
	struct winsize window = { .ws_row = 24, .ws_col = 80 };
	int terminal, status, program = 1;

	while (program < argc && strcmp(argv[program], "--") != 0)
		program++;
	if (program + 1 >= argc)
		return USAGE;
	pid_t child = forkpty(&terminal, NULL, NULL, &window);
	if (child < 0)
		broken("forkpty");
	if (child == 0) {
		execvp(argv[program + 1], argv + program + 1);
		broken(argv[program + 1]);
	}
	for (int i = 1; i + 1 < program; i += 2) {
		if (!strcmp(argv[i], "-e"))
			expect(terminal, argv[i + 1]);
		else if (!strcmp(argv[i], "-s"))
			type(terminal, argv[i + 1]);
		else if (!strcmp(argv[i], "-w"))
			resize(terminal, argv[i + 1]);
		else
			return USAGE;
	}
	while (listen_once(terminal))
		;
	waitpid(child, &status, 0);
	return exit_status(status);
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		broken(path);
	close(fd);
}

/* Root in a user namespace when we are not root outside one. */
static void gain_namespaces(int flags)
{
	char map[64];
	uid_t uid = geteuid();
	gid_t gid = getegid();

	if (uid == 0) {
		if (unshare(flags) < 0)
			broken("unshare");
		return;
	}
	if (unshare(CLONE_NEWUSER | flags) < 0)
		broken("unshare with a user namespace");
	write_text("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "%u %u 1", uid, uid);
	write_text("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "%u %u 1", gid, gid);
	write_text("/proc/self/gid_map", map);
}

static void set_address(int fd, const char *interface, const char *address)
{
	struct ifreq request = { 0 };
	struct sockaddr_in *four = (struct sockaddr_in *)&request.ifr_addr;

	strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
	four->sin_family = AF_INET;
	if (inet_pton(AF_INET, address, &four->sin_addr) != 1 || ioctl(fd, SIOCSIFADDR, &request) < 0)
		broken(address);
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
		broken(interface);
}

static int bound(int kind, const char *address, char *port, size_t size)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof at;
	int fd = socket(AF_INET, kind | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, address, &at.sin_addr);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, length) < 0 || getsockname(fd, (struct sockaddr *)&at, &length) < 0)
		broken(address);
	snprintf(port, size, "%d", ntohs(at.sin_port));
	return fd;
}

static void echo_datagrams(int fd)
{
	struct sockaddr_storage from;
	char text[64];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		socklen_t length = sizeof from;
		ssize_t got = recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&from, &length);
		if (got >= 0)
			sendto(fd, text, (size_t)got, 0, (struct sockaddr *)&from, length);
	}
}

/* A network of its own with a public-looking ADDRESS that answers on TCP and UDP, so that tests may name outside
 * addresses without ever reaching outside. Runs the program as UID with LAB_TCP and LAB_UDP set to the ports. */
static int laboratory(int argc, char **argv)
{
	char tcp_port[8], udp_port[8];
	uid_t uid = (uid_t)number(argv[2]);
	int status;

	(void)argc;
	gain_namespaces(CLONE_NEWNET);
	int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	set_address(control, "lo", "127.0.0.1");
	set_address(control, "lo:1", argv[1]);
	int tcp = bound(SOCK_STREAM, argv[1], tcp_port, sizeof tcp_port);
	int udp = bound(SOCK_DGRAM, argv[1], udp_port, sizeof udp_port);
	if (listen(tcp, 64) < 0)
		broken("listen");
	setenv("LAB_TCP", tcp_port, 1);
	setenv("LAB_UDP", udp_port, 1);
	pid_t server = fork();
	if (server == 0)
		echo_datagrams(udp);
	pid_t child = fork();
	if (child == 0) {
		if (geteuid() == 0 && uid != 0 && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0))
			broken("setuid");
		execvp(argv[3], argv + 3);
		broken(argv[3]);
	}
	waitpid(child, &status, 0);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	return exit_status(status);
}

/* Root, or as good as root in namespaces of its own: what "works outside" means for calls that need privilege. */
static int privileged(int argc, char **argv)
{
	(void)argc;
	if (geteuid() != 0) {
		char map[64];
		uid_t uid = geteuid();
		gid_t gid = getegid();
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC) < 0)
			broken("unshare");
		write_text("/proc/self/setgroups", "deny");
		snprintf(map, sizeof map, "0 %u 1", uid);
		write_text("/proc/self/uid_map", map);
		snprintf(map, sizeof map, "0 %u 1", gid);
		write_text("/proc/self/gid_map", map);
	}
	execvp(argv[1], argv + 1);
	broken(argv[1]);
}

/* Keep descriptors open across an exec, as a careless launcher would. */
static int leak_descriptor(int argc, char **argv)
{
	int fd = open(argv[1], O_RDONLY);

	(void)argc;
	if (fd < 0 || dup2(fd, 9) < 0 || dup2(fd, 57) < 0)
		broken(argv[1]);
	execvp(argv[2], argv + 2);
	broken(argv[2]);
}

const struct command host_commands[] = {
	{ "on-terminal", "[-e TEXT|-s TEXT|-w ROWSxCOLUMNS]… -- PROGRAM…", 2, on_terminal },
	{ "laboratory", "ADDRESS UID PROGRAM…", 3, laboratory },
	{ "privileged", "PROGRAM…", 1, privileged },
	{ "leak-descriptor", "FILE PROGRAM…", 2, leak_descriptor },
	{ 0 },
};
