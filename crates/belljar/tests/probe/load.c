/* Programs that misbehave with resources: memory, processor time, processes, files, output, signals. */
#include "probe.h"

#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <netinet/in.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <pthread.h>
#include <time.h>

enum { MEGABYTE = 1 << 20 };

/* Where a run says how far it got; survives its being killed. Shared by fork. */
static int progress = -1;

static void open_progress(const char *path)
{
	progress = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (progress < 0)
		broken(path);
}

static void note(long value)
{
	char text[32];
	int length = snprintf(text, sizeof text, "%ld\n", value);

	if (progress >= 0 && pwrite(progress, text, (size_t)length, 0) != length)
		broken("progress");
}

static void *take(const char *kind, size_t size)
{
	void *memory = MAP_FAILED;

	if (!strcmp(kind, "anonymous"))
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	else if (!strcmp(kind, "memfd")) {
		int fd = memfd_create("probe", 0);
		if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
			memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	} else if (!strcmp(kind, "sysv")) {
		int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
		memory = id < 0 ? MAP_FAILED : shmat(id, NULL, 0);
	} else
		broken("unknown kind of memory");
	return memory;
}

/* Pages of a file that is never mapped are in no process's resident set. */
static int write_memfd(long megabytes)
{
	static char block[MEGABYTE];
	int fd = memfd_create("probe", 0);

	if (fd < 0)
		return report("alloc", -1);
	for (long done = 0; done < megabytes; done++) {
		if (write(fd, block, sizeof block) != sizeof block)
			return report("alloc", -1);
		note(done + 1);
	}
	return allowed("alloc", "%ld MB", megabytes);
}

/* Touch memory one megabyte at a time, saying after each how much there is. */
static int allocate(const char *kind, long megabytes)
{
	if (!strcmp(kind, "memfd-written"))
		return write_memfd(megabytes);
	char *memory = take(kind, (size_t)megabytes * MEGABYTE);

	if (memory == MAP_FAILED)
		return report("alloc", -1);
	for (long done = 0; done < megabytes; done++) {
		for (long page = 0; page < MEGABYTE; page += 4096)
			memory[done * MEGABYTE + page] = 1;
		note(done + 1);
	}
	return allowed("alloc", "%ld MB", megabytes);
}

static int wait_for(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return REFUSED;
	return WIFEXITED(status) ? WEXITSTATUS(status) : REFUSED;
}

static int in_grandchild(int (*job)(char **), char **argv)
{
	pid_t child = fork();

	if (child < 0)
		return report("fork", -1);
	if (child > 0)
		return wait_for(child);
	pid_t grandchild = fork();
	if (grandchild < 0)
		_exit(report("fork", -1));
	_exit(grandchild > 0 ? wait_for(grandchild) : job(argv));
}

static int allocate_job(char **argv)
{
	return allocate(argv[1], number(argv[2]));
}

static int alloc(int argc, char **argv)
{
	if (argc > 3)
		open_progress(argv[3]);
	return allocate_job(argv);
}

static int alloc_grandchild(int argc, char **argv)
{
	if (argc > 3)
		open_progress(argv[3]);
	return in_grandchild(allocate_job, argv);
}

/* COUNT children of MEGABYTES each: none is large, all together are. */
static int alloc_many(int argc, char **argv)
{
	long children = number(argv[1]);

	(void)argc;
	for (long i = 0; i < children; i++) {
		pid_t child = fork();
		if (child < 0)
			return report("fork", -1);
		if (child == 0) {
			allocate("anonymous", number(argv[2]));
			for (;;)
				pause();
		}
	}
	for (;;)
		pause();
}

/* Fill a file, so that tmpfs, quota or file size limits are met. */
static int fill(int argc, char **argv)
{
	static char block[MEGABYTE];
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	long megabytes = number(argv[2]), done;

	if (argc > 3)
		open_progress(argv[3]);
	/* Be told by errno rather than by a signal. */
	signal(SIGXFSZ, SIG_IGN);
	if (fd < 0)
		return report("fill", -1);
	for (done = 0; done < megabytes; done++) {
		for (size_t sent = 0; sent < sizeof block;) {
			/* The last write before a limit may be a short one; only the next says why. */
			ssize_t written = write(fd, block + sent, sizeof block - sent);
			if (written < 0) {
				int why = errno;
				printf("filled: allowed %ld MB\n", done);
				errno = why;
				return report("fill", -1);
			}
			sent += (size_t)written;
		}
		note(done + 1);
	}
	return allowed("fill", "%ld MB", megabytes);
}

static void spin(double seconds)
{
	struct timespec now;

	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((double)now.tv_sec + (double)now.tv_nsec / 1e9 < seconds);
}

static void *spin_thread(void *seconds)
{
	spin(*(double *)seconds);
	return NULL;
}

static int burn_job(char **argv)
{
	spin(atof(argv[1]));
	return allowed("burn", "%s s", argv[1]);
}

static int burn(int argc, char **argv)
{
	(void)argc;
	return burn_job(argv);
}

static int burn_grandchild(int argc, char **argv)
{
	(void)argc;
	return in_grandchild(burn_job, argv);
}

static int burn_threads(int argc, char **argv)
{
	pthread_t threads[64];
	double seconds = atof(argv[1]);
	long count = number(argv[2]);

	(void)argc;
	for (long i = 0; i < count && i < 64; i++)
		if ((errno = pthread_create(&threads[i], NULL, spin_thread, &seconds)) != 0)
			return report("thread", -1);
	for (long i = 0; i < count && i < 64; i++)
		pthread_join(threads[i], NULL);
	return allowed("burn", "%s s in each of %ld threads", argv[1], count);
}

/* Short-lived children one after the other: each is gone before anyone can sample it, and with SIGCHLD ignored
 * nobody waits for them, so that their time appears in no parent's account. */
static int burn_children(int argc, char **argv)
{
	double each = atof(argv[1]);
	long count = number(argv[2]);

	if (argc > 3 && !strcmp(argv[3], "ignored"))
		signal(SIGCHLD, SIG_IGN);
	for (long i = 0; i < count; i++) {
		pid_t child = fork();
		if (child < 0)
			return report("fork", -1);
		if (child == 0) {
			spin(each);
			_exit(0);
		}
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	}
	return allowed("burn", "%ld children of %s s", count, argv[1]);
}

/* COUNT processes that stay; says how many it got. Tries on for ever after a refusal only when told to. */
static int fork_bomb(int argc, char **argv)
{
	long wanted = number(argv[1]), made = 0, failures = 0;
	int persistent = argc > 2 && !strcmp(argv[2], "persistent");

	while (made < wanted) {
		pid_t child = fork();
		if (child == 0)
			for (;;)
				pause();
		if (child > 0) {
			made++;
			continue;
		}
		if (!persistent || ++failures > 1000) {
			int why = errno;
			printf("forked: allowed %ld\n", made);
			errno = why;
			return report("fork-bomb", -1);
		}
	}
	return allowed("fork-bomb", "%ld", made);
}

static void *pause_thread(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int thread_bomb(int argc, char **argv)
{
	long wanted = number(argv[1]), made;
	pthread_attr_t small;
	pthread_t thread;

	(void)argc;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (made = 0; made < wanted; made++)
		if ((errno = pthread_create(&thread, &small, pause_thread, NULL)) != 0) {
			int why = errno;
			printf("started: allowed %ld\n", made);
			errno = why;
			return report("thread-bomb", -1);
		}
	return allowed("thread-bomb", "%ld", made);
}

/* Leave by setsid and a double fork, as daemons do, and beat: a heartbeat that goes on is a survivor. */
static int daemonise(int argc, char **argv)
{
	struct timespec beat = { .tv_nsec = 10 * 1000 * 1000 };

	(void)argc;
	open_progress(argv[1]);
	if (fork() > 0)
		return allowed("daemonise", "%s", argv[1]);
	setsid();
	if (fork() > 0)
		_exit(0);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	signal(SIGHUP, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	for (long beats = 1;; beats++) {
		note(beats);
		nanosleep(&beat, NULL);
	}
}

/* Writes MARK when ready, then waits for a signal it does not die of. */
static int ignore_signals(int argc, char **argv)
{
	(void)argc;
	for (int s = 1; s < 32; s++)
		signal(s, SIG_IGN);
	open_progress(argv[1]);
	note(getpid());
	for (;;)
		pause();
	return ALLOWED;
}

static int stop_self(int argc, char **argv)
{
	(void)argc;
	open_progress(argv[1]);
	note(getpid());
	raise(SIGSTOP);
	return allowed("stop-self", "continued");
}

static volatile sig_atomic_t caught;

static void catch(int signal_number)
{
	caught = signal_number;
}

/* Says which signal arrived and exits with its number. */
static int catch_signal(int argc, char **argv)
{
	sigset_t all, none;

	(void)argc;
	sigfillset(&all);
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &all, NULL);
	for (int i = 2; i < argc; i++)
		signal((int)number(argv[i]), catch);
	open_progress(argv[1]);
	note(getpid());
	puts("ready: allowed");
	fflush(stdout);
	while (!caught)
		sigsuspend(&none);
	printf("caught: allowed %d\n", (int)caught);
	return caught;
}

static int raise_signal(int argc, char **argv)
{
	(void)argc;
	raise((int)number(argv[1]));
	return ALLOWED;
}

static int leave(int argc, char **argv)
{
	(void)argc;
	return (int)number(argv[1]);
}

/* Megabytes of text on a descriptor; the note says how many got away. */
static int chatter(int argc, char **argv)
{
	static char block[MEGABYTE];
	int fd = (int)number(argv[1]);
	long megabytes = number(argv[2]), done;

	if (argc > 3)
		open_progress(argv[3]);
	signal(SIGPIPE, SIG_IGN);
	memset(block, 'x', sizeof block);
	for (done = 0; done < megabytes; done++) {
		for (size_t sent = 0; sent < sizeof block;) {
			ssize_t written = write(fd, block + sent, sizeof block - sent);
			if (written < 0)
				return errno == EPIPE ? 32 : REFUSED;
			sent += (size_t)written;
		}
		note(done + 1);
	}
	return ALLOWED;
}

static int open_many(int argc, char **argv)
{
	long wanted = number(argv[1]), made;

	(void)argc;
	for (made = 0; made < wanted; made++)
		if (open("/dev/null", O_RDONLY) < 0) {
			int why = errno;
			printf("opened: allowed %ld\n", made);
			errno = why;
			return report("open-many", -1);
		}
	return allowed("open-many", "%ld", made);
}

/* Undo a soft limit where the hard one lets us. */
static int raise_limit(int argc, char **argv)
{
	struct rlimit limit = { (rlim_t)number(argv[2]), (rlim_t)number(argv[2]) };

	(void)argc;
	return report("raise-limit", setrlimit((int)number(argv[1]), &limit));
}

/* Has the kernel hold MB in connections to itself, which nobody reads, and lives on. */
static int hold_sockets(int argc, char **argv)
{
	static char text[1 << 16];
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof place;
	struct rlimit files;
	long held = 0, wanted = number(argv[1]) << 20;
	int server = socket(AF_INET, SOCK_STREAM, 0);

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (bind(server, (struct sockaddr *)&place, length) < 0 || listen(server, 64) < 0)
		broken("listen");
	getsockname(server, (struct sockaddr *)&place, &length);
	if (argc > 2)
		open_progress(argv[2]);
	while (held < wanted) {
		int client = socket(AF_INET, SOCK_STREAM, 0);
		if (client < 0 || connect(client, (struct sockaddr *)&place, length) < 0)
			break;
		int peer = accept(server, NULL, NULL);
		int ends[] = { client, peer };
		for (int at = 0; at < 2; at++) {
			ssize_t wrote;
			fcntl(ends[at], F_SETFL, O_NONBLOCK);
			while ((wrote = write(ends[at], text, sizeof text)) > 0)
				held += wrote;
		}
		note(held >> 20);
	}
	allowed("hold-sockets", "%ld", held >> 20);
	pause();
	return ALLOWED;
}

/*
 * Has a child that never leaves vfork: the kernel lets its maker return, and take any signal but the last one, only when the
 * child runs another program or ends. The child beats, so that its standing still can be seen.
 */
static int wait_in_vfork(int argc, char **argv)
{
	static long beat;

	(void)argc;
	open_progress(argv[1]);
	if (vfork() == 0)
		for (;;) {
			note(++beat);
			usleep(1000);
		}
	return ALLOWED;
}

const struct command load_commands[] = {
	{ "hold-sockets", "MB [PROGRESS]", 1, hold_sockets },
	{ "alloc", "anonymous|memfd|memfd-written|sysv MB [PROGRESS]", 2, alloc },
	{ "alloc-grandchild", "anonymous|memfd|memfd-written|sysv MB [PROGRESS]", 2, alloc_grandchild },
	{ "alloc-many", "CHILDREN MB", 2, alloc_many },
	{ "fill", "PATH MB [PROGRESS]", 2, fill },
	{ "burn", "SECONDS", 1, burn },
	{ "burn-grandchild", "SECONDS", 1, burn_grandchild },
	{ "burn-threads", "SECONDS THREADS", 2, burn_threads },
	{ "burn-children", "SECONDS-EACH COUNT [ignored]", 2, burn_children },
	{ "fork-bomb", "COUNT [persistent]", 1, fork_bomb },
	{ "thread-bomb", "COUNT", 1, thread_bomb },
	{ "wait-in-vfork", "PROGRESS", 1, wait_in_vfork },
	{ "daemonise", "HEARTBEAT", 1, daemonise },
	{ "ignore-signals", "MARK", 1, ignore_signals },
	{ "stop-self", "MARK", 1, stop_self },
	{ "catch", "MARK SIGNAL…", 2, catch_signal },
	{ "raise", "SIGNAL", 1, raise_signal },
	{ "leave", "CODE", 1, leave },
	{ "chatter", "FD MB [PROGRESS]", 2, chatter },
	{ "open-many", "COUNT", 1, open_many },
	{ "raise-limit", "RESOURCE VALUE", 2, raise_limit },
	{ 0 },
};
