/* Copy one large file in one of several ways, to find out which is best on a file system. `bench/large_probe.py`
   compares them.

       large_probe WAY PIECE_KIB SOURCE TARGET [FLAG...]

   Ways: rw (read and write), cfr (copy_file_range), sendfile, splice, map (write from a mapping of the source), two
   (two threads write the two halves), turns (two threads write pieces in turn), pair (one thread reads, one writes,
   two buffers), direct (reads and writes with O_DIRECT in two threads), wdirect (only the writing is direct).
   Flags: alloc (fallocate before), size (ftruncate before), keep (fallocate, keeping the size), early (start
   write-back with sync_file_range after every 8 MiB), beside (do so in another thread), cached (with direct: read the
   source through the cache), nosync (no sync at the end), cfrtwo (two and turns use copy_file_range).
   Prints the seconds of the copy, the seconds with the sync, and the processor seconds. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int in, out, early, beside, cfr_in_threads, buffers = 2;
static size_t piece;
static off_t size;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double processor(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static off_t written;

static void start_writeback(off_t at, size_t got)
{
	if (!early)
		return;
	off_t unit = (off_t)early << 20, end = at + got;
	if (at / unit == end / unit)
		return;
	if (!beside)
		sync_file_range(out, at / unit * unit, end / unit * unit - at / unit * unit, SYNC_FILE_RANGE_WRITE);
	else {
		pthread_mutex_lock(&lock);
		written = end / unit * unit;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
}

static void *write_back(void *unused)
{
	off_t at = 0;
	(void)unused;
	for (;;) {
		pthread_mutex_lock(&lock);
		while (written <= at)
			pthread_cond_wait(&changed, &lock);
		off_t end = written;
		pthread_mutex_unlock(&lock);
		sync_file_range(out, at, end - at, SYNC_FILE_RANGE_WRITE);
		at = end;
	}
	return NULL;
}

static void *buffer_of(size_t length)
{
	void *b = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		die("mmap");
	return b;
}

static void move_rw(off_t at, off_t end, char *b)
{
	while (at < end) {
		size_t want = end - at < (off_t)piece ? (size_t)(end - at) : piece;
		ssize_t got = pread(in, b, want, at);
		if (got <= 0 || pwrite(out, b, got, at) != got)
			die("read/write");
		start_writeback(at, got);
		at += got;
	}
}

static void move_cfr(off_t at, off_t end)
{
	while (at < end) {
		off_t from = at, to = at;
		size_t want = end - at < (off_t)piece ? (size_t)(end - at) : piece;
		ssize_t got = copy_file_range(in, &from, out, &to, want, 0);
		if (got <= 0)
			die("copy_file_range");
		start_writeback(at, got);
		at += got;
	}
}

struct part { off_t start, step, run; };

static void *one_part(void *p)
{
	struct part *part = p;
	char *b = buffer_of(piece);
	for (off_t at = part->start; at < size; at += part->step) {
		off_t end = at + part->run < size ? at + part->run : size;
		if (cfr_in_threads)
			move_cfr(at, end);
		else
			move_rw(at, end, b);
		if (!part->step)
			break;
	}
	return NULL;
}

static struct slot { char *data; ssize_t length; off_t at; int full; } slots[64];
static void *reader(void *unused)
{
	(void)unused;
	int i = 0;
	for (off_t at = 0; at < size; i = (i + 1) % buffers) {
		struct slot *s = slots + i;
		pthread_mutex_lock(&lock);
		while (s->full)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		ssize_t got = pread(in, s->data, piece, at);
		if (got <= 0)
			die("read");
		pthread_mutex_lock(&lock);
		s->length = got;
		s->at = at;
		s->full = 1;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		at += got;
	}
	return NULL;
}

static void move_pair(int direct)
{
	pthread_t t;
	for (int i = 0; i < buffers; i++)
		slots[i].data = buffer_of(piece);
	pthread_create(&t, NULL, reader, NULL);
	int i = 0;
	for (off_t at = 0; at < size; i = (i + 1) % buffers) {
		struct slot *s = slots + i;
		pthread_mutex_lock(&lock);
		while (!s->full)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		size_t length = direct ? (s->length + 4095) / 4096 * 4096 : s->length;
		if (pwrite(out, s->data, length, s->at) != (ssize_t)length)
			die("write");
		start_writeback(s->at, s->length);
		at = s->at + s->length;
		pthread_mutex_lock(&lock);
		s->full = 0;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	pthread_join(t, NULL);
}

static void move_splice(int with_sendfile)
{
	int ends[2];
	off_t at = 0, to = 0;
	if (pipe(ends))
		die("pipe");
	fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
	while (at < size) {
		off_t before = to;
		ssize_t got = with_sendfile ? sendfile(out, in, &at, piece) : splice(in, &at, ends[1], NULL, piece, 0);
		if (got <= 0)
			die("splice");
		if (with_sendfile)
			to = at;
		else
			for (ssize_t left = got; left;) {
				ssize_t put = splice(ends[0], NULL, out, &to, left, SPLICE_F_MOVE);
				if (put <= 0)
					die("splice");
				left -= put;
			}
		start_writeback(before, to - before);
	}
}

static void move_map(void)
{
	for (off_t at = 0; at < size;) {
		size_t want = size - at < (off_t)piece ? (size_t)(size - at) : piece;
		char *m = mmap(NULL, want, PROT_READ, MAP_SHARED | MAP_POPULATE, in, at);
		if (m == MAP_FAILED)
			die("mmap");
		if (pwrite(out, m, want, at) != (ssize_t)want)
			die("write");
		munmap(m, want);
		start_writeback(at, want);
		at += want;
	}
}

int main(int count, char **words)
{
	if (count < 5)
		return 2;
	const char *way = words[1];
	int alloc = 0, set = 0, keep = 0, cached = 0, sync = 1;
	piece = (size_t)atol(words[2]) << 10;
	for (int i = 5; i < count; i++) {
		alloc |= !strcmp(words[i], "alloc");
		set |= !strcmp(words[i], "size");
		keep |= !strcmp(words[i], "keep");
		cached |= !strcmp(words[i], "cached");
		beside |= !strcmp(words[i], "beside");
		cfr_in_threads |= !strcmp(words[i], "cfrtwo");
		if (!strcmp(words[i], "nosync"))
			sync = 0;
		if (!strncmp(words[i], "early", 5))
			early = words[i][5] ? atoi(words[i] + 5) : 8;
		if (!strncmp(words[i], "buffers", 7))
			buffers = atoi(words[i] + 7);
	}
	int direct = !strcmp(way, "direct"), wdirect = direct || !strcmp(way, "wdirect");
	double start = now();
	in = open(words[3], O_RDONLY | (direct && !cached ? O_DIRECT : 0));
	out = open(words[4], O_WRONLY | O_CREAT | O_EXCL | (wdirect ? O_DIRECT : 0), 0600);
	struct stat status;
	if (in < 0 || out < 0 || fstat(in, &status))
		die("open");
	size = status.st_size;
	if (set && ftruncate(out, size))
		die("ftruncate");
	if ((alloc || keep) && fallocate(out, keep ? FALLOC_FL_KEEP_SIZE : 0, 0, size))
		die("fallocate");
	if (beside) {
		pthread_t t;
		pthread_create(&t, NULL, write_back, NULL);
	}
	if (!strcmp(way, "rw"))
		move_rw(0, size, buffer_of(piece));
	else if (!strcmp(way, "cfr"))
		move_cfr(0, size);
	else if (!strcmp(way, "sendfile") || !strcmp(way, "splice"))
		move_splice(!strcmp(way, "sendfile"));
	else if (!strcmp(way, "map"))
		move_map();
	else if (!strcmp(way, "pair") || wdirect)
		move_pair(wdirect);
	else if (!strcmp(way, "two") || !strcmp(way, "turns")) {
		int turns = way[1] == 'u';
		off_t half = (size / 2 + 4095) / 4096 * 4096;
		struct part parts[2] = {{0, turns ? 2 * (off_t)(16 << 20) : size, turns ? (16 << 20) : half},
		                        {turns ? (16 << 20) : half, turns ? 2 * (off_t)(16 << 20) : size,
		                         turns ? (16 << 20) : size}};
		pthread_t t;
		pthread_create(&t, NULL, one_part, parts + 1);
		one_part(parts);
		pthread_join(t, NULL);
	} else
		return 2;
	if (wdirect && ftruncate(out, size))
		die("ftruncate");
	double copied = now();
	if (sync && syncfs(out))
		die("syncfs");
	if (close(out))
		die("close");
	printf("%.4f %.4f %.4f\n", copied - start, now() - start, processor());
	return 0;
}
