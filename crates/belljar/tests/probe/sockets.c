/* Attempts to reach something through a socket, and to make sockets of families an agent has no use for. */
#include "probe.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { REPLY_WAIT_MS = 2000 };

static socklen_t unix_address(struct sockaddr_un *address, const char *name, int abstract)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	if (strlen(name) + 1 >= sizeof address->sun_path) {
		errno = ENAMETOOLONG;
		broken(name);
	}
	strcpy(address->sun_path + abstract, name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name) + (abstract ? 0 : 1));
}

struct target {
	struct sockaddr_un address;
	socklen_t length;
};

static int connect_kind(const char *name, const struct target *to, int kind)
{
	int fd = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);

	return report(name, fd < 0 ? -1 : connect(fd, (const struct sockaddr *)&to->address, to->length));
}

/* Datagrams need no connect: one sendto reaches a name. */
static int send_datagram(const char *name, const struct target *to)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	return report(name, fd < 0 ? -1 : sendto(fd, "x", 1, 0, (const struct sockaddr *)&to->address, to->length));
}

/* A filter that only looks at socket() forgets that one end of a socketpair can send anywhere too. */
static int send_from_pair(const char *name, const struct target *to, int by_message)
{
	int pair[2];
	struct iovec data = { .iov_base = "x", .iov_len = 1 };
	struct msghdr message = {
		.msg_name = (void *)&to->address, .msg_namelen = to->length, .msg_iov = &data, .msg_iovlen = 1,
	};

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) < 0)
		return report(name, -1);
	if (by_message)
		return report(name, sendmsg(pair[0], &message, 0));
	return report(name, sendto(pair[0], "x", 1, 0, (const struct sockaddr *)&to->address, to->length));
}

static int reconnect_pair(const char *name, const struct target *to)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) < 0)
		return report(name, -1);
	return report(name, connect(pair[0], (const struct sockaddr *)&to->address, to->length));
}

/* The kernel reads an int; a filter that compares 64 bits lets this one through. */
static int connect_high_bits(const char *name, const struct target *to, int kind)
{
	int fd = (int)syscall(SYS_socket, AF_UNIX | (1UL << 32), kind | (1UL << 32), 1UL << 32);

	return report(name, fd < 0 ? -1 : connect(fd, (const struct sockaddr *)&to->address, to->length));
}

static int reach(const struct target *to, const char *kind)
{
	if (!strcmp(kind, "stream"))
		return either(connect_kind("stream", to, SOCK_STREAM), connect_high_bits("stream-high", to, SOCK_STREAM));
	if (!strcmp(kind, "seqpacket"))
		return connect_kind("seqpacket", to, SOCK_SEQPACKET);
	int outcome = connect_kind("dgram-connect", to, SOCK_DGRAM);
	outcome = either(connect_high_bits("dgram-high", to, SOCK_DGRAM), outcome);
	outcome = either(send_datagram("dgram-sendto", to), outcome);
	outcome = either(send_from_pair("pair-sendto", to, 0), outcome);
	outcome = either(send_from_pair("pair-sendmsg", to, 1), outcome);
	return either(reconnect_pair("pair-connect", to), outcome);
}

static int connect_unix(int argc, char **argv)
{
	struct target to;

	(void)argc;
	to.length = unix_address(&to.address, argv[2], 0);
	return reach(&to, argv[1]);
}

static int connect_abstract(int argc, char **argv)
{
	struct target to;

	(void)argc;
	to.length = unix_address(&to.address, argv[2], 1);
	return reach(&to, argv[1]);
}

/* One call: says hello and hears an answer. */
static int call_once(const char *name, const struct target *to, int flags)
{
	struct pollfd wait = { .events = POLLOUT };
	char text[8] = "";

	wait.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
	if (wait.fd < 0 || connect(wait.fd, (const struct sockaddr *)&to->address, to->length) < 0)
		return report(name, -1);
	if (write(wait.fd, "hello", 5) != 5)
		return report(name, -1);
	wait.events = POLLIN;
	/* The caller bounds how long. */
	if (poll(&wait, 1, -1) != 1 || read(wait.fd, text, 5) != 5)
		return report(name, -1);
	close(wait.fd);
	return allowed(name, "%s", text);
}

static int call_unix(int argc, char **argv)
{
	int outcome = USAGE;

	for (int i = 1; i < argc; i++) {
		struct target to;
		to.length = unix_address(&to.address, argv[i], 0);
		int this = either(call_once("waiting", &to, 0), call_once("nonblocking", &to, SOCK_NONBLOCK));
		outcome = outcome == USAGE ? this : either(this, outcome);
	}
	return outcome;
}

static volatile int racing = 1;
static struct target raced[2];
static struct target shared;
static const char *raced_link;
static char raced_new[108];

/* Changes the address under the caller's hands. */
static void *flip_address(void *unused)
{
	for (int turn = 0; racing; turn ^= 1)
		memcpy(&shared, &raced[turn], sizeof shared);
	return unused;
}

/* Changes where a link leads. */
static void *flip_link(void *unused)
{
	for (int turn = 0; racing; turn ^= 1) {
		unlink(raced_new);
		if (symlink(raced[turn].address.sun_path, raced_new) == 0)
			rename(raced_new, raced_link);
	}
	return unused;
}

/* race-unix GOOD BAD LINK TIMES: calls that mean GOOD or BAD depending on when one looks. */
static int race_unix(int argc, char **argv)
{
	pthread_t first, second;
	struct target link;
	int through = 0;

	(void)argc;
	raced[0].length = unix_address(&raced[0].address, argv[1], 0);
	raced[1].length = unix_address(&raced[1].address, argv[2], 0);
	link.length = unix_address(&link.address, argv[3], 0);
	raced_link = argv[3];
	if (snprintf(raced_new, sizeof raced_new, "%s.new", argv[3]) >= (int)sizeof raced_new)
		broken("link name");
	shared = raced[0];
	pthread_create(&first, NULL, flip_address, NULL);
	pthread_create(&second, NULL, flip_link, NULL);
	for (int i = atoi(argv[4]); i > 0; i--) {
		const struct target *to = i % 2 ? &shared : &link;
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(fd, (const struct sockaddr *)&to->address, sizeof to->address) == 0)
			through++;
		close(fd);
	}
	racing = 0;
	pthread_join(first, NULL);
	pthread_join(second, NULL);
	return allowed("race-unix", "%d", through);
}

/* What must go on working: two processes of one box talking over a name of their own. */
static int talk_unix(int argc, char **argv)
{
	struct target to;
	char text[8] = "";
	int kind = argc > 2 && !strcmp(argv[2], "seqpacket") ? SOCK_SEQPACKET : SOCK_STREAM;

	to.length = unix_address(&to.address, argv[1], 0);
	int listener = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&to.address, to.length) < 0 || listen(listener, 1) < 0)
		return report("talk-unix", -1);
	pid_t child = fork();
	if (child == 0) {
		int fd = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
		if (connect(fd, (struct sockaddr *)&to.address, to.length) < 0)
			_exit(errno);
		_exit(write(fd, "hello", 5) == 5 ? 0 : errno);
	}
	int status;
	waitpid(child, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		errno = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
		return report("talk-unix", -1);
	}
	int peer = accept(listener, NULL, NULL);
	if (peer < 0 || read(peer, text, 5) != 5)
		return report("talk-unix", -1);
	return allowed("talk-unix", "%s", text);
}

static int talk_pair(int argc, char **argv)
{
	int pair[2];
	char text[8] = "";

	(void)argc;
	(void)argv;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 || write(pair[0], "hello", 5) != 5)
		return report("talk-pair", -1);
	return read(pair[1], text, 5) == 5 ? allowed("talk-pair", "%s", text) : report("talk-pair", -1);
}

static socklen_t inet_address(struct sockaddr_storage *address, const char *host, const char *port)
{
	struct sockaddr_in *four = (struct sockaddr_in *)address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;

	memset(address, 0, sizeof *address);
	if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons((uint16_t)number(port));
		return sizeof *four;
	}
	if (inet_pton(AF_INET6, host, &six->sin6_addr) != 1)
		broken(host);
	six->sin6_family = AF_INET6;
	six->sin6_port = htons((uint16_t)number(port));
	return sizeof *six;
}

static int tcp(int argc, char **argv)
{
	struct sockaddr_storage address;
	socklen_t length = inet_address(&address, argv[1], argv[2]);
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)argc;
	return report("tcp", fd < 0 ? -1 : connect(fd, (struct sockaddr *)&address, length));
}

/* TCP fast open carries data with the first packet and never calls connect. */
static int tcp_fastopen(int argc, char **argv)
{
	struct sockaddr_storage address;
	socklen_t length = inet_address(&address, argv[1], argv[2]);
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)argc;
	if (fd < 0)
		return report("tcp-fastopen", -1);
	return report("tcp-fastopen", sendto(fd, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&address, length));
}

/* A datagram that leaves proves nothing; only the far side's answer does. */
static int udp(int argc, char **argv)
{
	struct sockaddr_storage address;
	socklen_t length = inet_address(&address, argv[1], argv[2]);
	int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct pollfd answer = { .fd = fd, .events = POLLIN };
	char text[8];

	(void)argc;
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) < 0 || send(fd, "ping", 4, 0) < 0)
		return report("udp", -1);
	if (poll(&answer, 1, REPLY_WAIT_MS) == 0)
		return refused("udp", "NO-ANSWER");
	return report("udp", recv(fd, text, sizeof text, 0));
}

/* Can the box use its own loopback? Servers under test need it. */
static int own_loopback(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)argc;
	(void)argv;
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &length) < 0)
		return report("own-loopback", -1);
	return report("own-loopback", connect(fd, (struct sockaddr *)&address, length));
}

struct family {
	const char *name;
	int domain, kind, protocol;
};

static const struct family families[] = {
	{ "vsock", AF_VSOCK, SOCK_STREAM, 0 },
	{ "packet", AF_PACKET, SOCK_RAW, 0 },
	{ "alg", AF_ALG, SOCK_SEQPACKET, 0 },
	{ "raw", AF_INET, SOCK_RAW, IPPROTO_ICMP },
	{ "raw6", AF_INET6, SOCK_RAW, IPPROTO_ICMPV6 },
	{ "netlink-audit", AF_NETLINK, SOCK_RAW, NETLINK_AUDIT },
	{ "netlink-netfilter", AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER },
	{ "netlink-uevent", AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT },
	{ "netlink-sock-diag", AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG },
	{ "netlink-generic", AF_NETLINK, SOCK_RAW, NETLINK_GENERIC },
	{ "netlink-xfrm", AF_NETLINK, SOCK_RAW, NETLINK_XFRM },
	{ "key", AF_KEY, SOCK_RAW, 2 },
	{ "bluetooth", AF_BLUETOOTH, SOCK_RAW, 1 },
	{ "can", AF_CAN, SOCK_RAW, 1 },
	{ "tipc", AF_TIPC, SOCK_SEQPACKET, 0 },
	{ "rds", AF_RDS, SOCK_SEQPACKET, 0 },
	{ "xdp", AF_XDP, SOCK_RAW, 0 },
	{ "smc", AF_SMC, SOCK_STREAM, 0 },
	{ "qipcrtr", AF_QIPCRTR, SOCK_DGRAM, 0 },
	{ "x25", AF_X25, SOCK_SEQPACKET, 0 },
	{ "ax25", AF_AX25, SOCK_SEQPACKET, 0 },
	{ "kcm", AF_KCM, SOCK_SEQPACKET, 0 },
	{ "nfc", AF_NFC, SOCK_SEQPACKET, 0 },
	{ "pppox", AF_PPPOX, SOCK_DGRAM, 0 },
	{ "llc", AF_LLC, SOCK_STREAM, 0 },
	{ "mptcp", AF_INET, SOCK_STREAM, 262 },
	{ "sctp", AF_INET, SOCK_SEQPACKET, IPPROTO_SCTP },
};

static int make_socket(int argc, char **argv)
{
	int outcome = USAGE;

	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		const struct family *f = &families[i];
		if (argc > 1 && strcmp(argv[1], "all") != 0 && strcmp(argv[1], f->name) != 0)
			continue;
		int fd = socket(f->domain, f->kind | SOCK_CLOEXEC, f->protocol);
		int this = report(f->name, fd);
		outcome = outcome == USAGE ? this : either(this, outcome);
	}
	return outcome;
}

/* Hold a socket open under another family's number by way of its upper bits. */
static int make_socket_high(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return report("vsock-high", syscall(SYS_socket, AF_VSOCK | (1UL << 32), SOCK_STREAM, 0));
}

static int swung;

static void *swing(void *unused)
{
	(void)unused;
	for (;;) {
		fcntl(swung, F_SETFL, O_NONBLOCK);
		fcntl(swung, F_SETFL, 0);
	}
	return NULL;
}

/* Whether a connection may wait is said by the descriptor, and its owner may say otherwise at any moment. */
static int swing_connect(int argc, char **argv)
{
	struct target to;
	int server = socket(AF_UNIX, SOCK_STREAM, 0);

	(void)argc;
	to.length = unix_address(&to.address, argv[1], 0);
	if (bind(server, (struct sockaddr *)&to.address, to.length) < 0 || listen(server, 0) < 0)
		broken("listen");
	/* There is no room for another, and nobody makes any. */
	connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&to.address, to.length);
	swung = socket(AF_UNIX, SOCK_STREAM, 0);
	/* Sooner or later one waits that did not look like it. */
	for (int times = 0; times < 100; times++) {
		pid_t child = fork();
		if (child == 0) {
			pthread_t thread;
			pthread_create(&thread, NULL, swing, NULL);
			for (;;)
				connect(swung, (struct sockaddr *)&to.address, to.length);
		}
		usleep(20000);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	alarm(20);
	return report("socket-packet", socket(AF_PACKET, SOCK_RAW, 0));
}

/* Sends a descriptor to nobody, and keeps nothing else of it. */
static int post_descriptor(int argc, char **argv)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec data = { .iov_base = "x", .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control,
	};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	int pair[2], file = open(argv[1], O_RDWR);

	(void)argc;
	if (file < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		broken(argv[1]);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof file);
	memcpy(CMSG_DATA(head), &file, sizeof file);
	if (sendmsg(pair[0], &message, 0) < 0)
		broken("sendmsg");
	close(file);
	pause();
	return ALLOWED;
}

const struct command socket_commands[] = {
	{ "connect-unix", "stream|seqpacket|dgram PATH", 2, connect_unix },
	{ "connect-abstract", "stream|seqpacket|dgram NAME", 2, connect_abstract },
	{ "talk-unix", "PATH [seqpacket]", 1, talk_unix },
	{ "call-unix", "PATH...", 1, call_unix },
	{ "race-unix", "GOOD BAD LINK TIMES", 4, race_unix },
	{ "talk-pair", "", 0, talk_pair },
	{ "swing-connect", "PATH", 1, swing_connect },
	{ "post-descriptor", "FILE", 1, post_descriptor },
	{ "tcp", "ADDRESS PORT", 2, tcp },
	{ "tcp-fastopen", "ADDRESS PORT", 2, tcp_fastopen },
	{ "udp", "ADDRESS PORT", 2, udp },
	{ "own-loopback", "", 0, own_loopback },
	{ "socket", "FAMILY|all", 1, make_socket },
	{ "socket-high", "", 0, make_socket_high },
	{ 0 },
};
