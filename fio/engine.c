/*
 * libdrystone_fio.so: Drystone as an external ioengine of fio 3.33.
 *
 *   fio --ioengine=external:libdrystone_fio.so --stack=FILE --filename=DEVICE --thread ...
 *
 * A stack is opened once in the process and shared by all jobs that name it; each thread has a context of
 * its own. Only the C API (drystone.h) is used. docs/fio.md is for users.
 *
 * Invariants
 * - A stack is open while a job that was set up has not been cleaned up; what is left at the end of the process,
 *   because fio gave up, is closed then.
 * - Of a job's io_us, `queued` wait in `batch`, the others that fio knows as queued are in flight.
 * - Buffers are not freed while I/O of the context is in flight.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fio.h"
#include "optgroup.h"

#include "drystone.h"

/* The fio whose headers this was built with. Its structures are what FIO_IOOPS_VERSION does not tell of. */
#ifndef DRYSTONE_FIO_NEEDED
#define DRYSTONE_FIO_NEEDED "fio-3.33"
#endif

/* How long the end of a job waits for I/O that drivers have: as long as a request may take before it is lost. */
#define CLOSE_TIMEOUT (30ull * 1000 * 1000 * 1000)

/* Polls in vain after which the core is offered to others, as `drystone bench` does. */
#define POLLS_IN_VAIN 64

/* A stack and the jobs that use it. */
struct shared {
	struct shared *next;
	char *path;
	drystone_stack *stack;
	unsigned int users;
	pid_t pid;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared *stacks;	/* under the lock */
static unsigned int noted;	/* under the lock: bits of ignored options of which that was said */

/* What a job has, from its init to its cleanup. */
struct job {
	drystone_context *context;
	struct drystone_io *batch;
	struct drystone_completion *done;
	unsigned int depth;
	unsigned int queued;
	bool own_memory;	/* the buffers are malloc's, not the context's */
};

struct options {
	struct shared *shared;	/* no option, and fio wants none at offset 0: the job uses this stack */
	char *stack;
	char *throttle_group;
	unsigned int hipri;
	unsigned int fixedbufs;
	unsigned int nowait;
	unsigned int registerfiles;
	unsigned int nonvectored;
	unsigned int sqthread_poll;
	unsigned int sqthread_poll_cpu;
	unsigned int force_async;
	unsigned int uncached;
};

#define OPTION(name_, type_, help_) { \
	.name = #name_, .lname = #name_, .type = type_, .off1 = offsetof(struct options, name_), \
	.help = help_, .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_IOURING }

static struct fio_option options[] = {
	OPTION(stack, FIO_OPT_STR_STORE, "Stack file whose devices --filename names"),
	OPTION(throttle_group, FIO_OPT_STR_STORE, "Throttle group of the stack that the I/O belongs to"),
	OPTION(hipri, FIO_OPT_STR_SET, "Poll for completions, where the device can be polled"),
	OPTION(fixedbufs, FIO_OPT_STR_SET, "Make the buffers known to the kernel beforehand"),
	OPTION(nowait, FIO_OPT_BOOL, "Fail with EAGAIN instead of waiting for a tag"),
	OPTION(registerfiles, FIO_OPT_STR_SET, "Ignored: files are always registered"),
	OPTION(nonvectored, FIO_OPT_INT, "Ignored: an I/O of one buffer is never vectored"),
	OPTION(sqthread_poll, FIO_OPT_STR_SET, "Ignored: the job's own thread submits"),
	OPTION(sqthread_poll_cpu, FIO_OPT_INT, "Ignored: the job's own thread submits"),
	OPTION(force_async, FIO_OPT_INT, "Ignored: the stack decides"),
	OPTION(uncached, FIO_OPT_INT, "Ignored: the stack file decides (direct = true)"),
	{ .name = NULL },
};

static int refuse(struct thread_data *td, int error, const char *what)
{
	log_err("fio: drystone: %s: %s\n", what, drystone_last_error());
	td_verror(td, error < 0 ? -error : EINVAL, what);
	return 1;
}

/* --- the stacks of the process --- */

/* The lock is held. */
static struct shared *find_stack(const char *path)
{
	struct shared *shared = stacks;

	while (shared && strcmp(shared->path, path))
		shared = shared->next;
	return shared;
}

/* The lock is held. A stack that was just opened has no users. */
static struct shared *open_stack(struct thread_data *td, char *path)
{
	struct shared *shared = calloc(1, sizeof(*shared));
	int ret;

	if (!shared) {
		td_verror(td, ENOMEM, "stack");
		return NULL;
	}
	ret = drystone_stack_open_file(DRYSTONE_ABI_VERSION, path, 0, &shared->stack);
	if (ret) {
		free(shared);
		refuse(td, ret, "the stack cannot be opened");
		return NULL;
	}
	shared->path = strdup(path);
	shared->pid = getpid();
	shared->next = stacks;
	stacks = shared;
	return shared;
}

/* The lock is held, and nobody uses the stack. */
static int close_stack(struct shared *shared)
{
	struct shared **link = &stacks;
	int ret = drystone_stack_close(shared->stack);

	while (*link != shared)
		link = &(*link)->next;
	*link = shared->next;
	free(shared->path);
	free(shared);
	return ret;
}

static void leave_stack(struct thread_data *td, struct shared *shared)
{
	pthread_mutex_lock(&lock);
	if (--shared->users == 0) {
		int ret = close_stack(shared);

		if (ret)
			refuse(td, ret, "the stack was not closed cleanly");
	}
	pthread_mutex_unlock(&lock);
}

/* fio does not clean up jobs that never ran. */
__attribute__((destructor)) static void close_stacks(void)
{
	while (stacks && stacks->pid == getpid())
		close_stack(stacks);
}

/* --- setting up, in fio's main thread --- */

static void note_ignored(const struct options *o)
{
	const struct {
		const char *name;
		unsigned int set;
	} ignored[] = {
		{ "registerfiles", o->registerfiles }, { "nonvectored", o->nonvectored },
		{ "sqthread_poll", o->sqthread_poll }, { "sqthread_poll_cpu", o->sqthread_poll_cpu },
		{ "force_async", o->force_async }, { "uncached", o->uncached },
	};
	size_t i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
		if (!ignored[i].set || noted & 1u << i)
			continue;
		noted |= 1u << i;
		log_err("fio: drystone: note: %s has no meaning here and is ignored\n",
			ignored[i].name);
	}
	pthread_mutex_unlock(&lock);
}

static int check_options(struct thread_data *td)
{
	struct options *o = td->eo;

	if (!td->o.use_thread) {
		log_err("fio: drystone: the jobs share a stack in one process, and forked jobs cannot: "
			"add --thread\n");
		td_verror(td, EINVAL, "jobs are not threads");
		return 1;
	}
	if (!o->stack) {
		log_err("fio: drystone: --stack is missing: name a stack file, and by --filename a "
			"device of it\n");
		td_verror(td, EINVAL, "no stack");
		return 1;
	}
	if (!td->o.filename || !td->files_index) {
		log_err("fio: drystone: --filename is missing: name a device of the stack\n");
		td_verror(td, EINVAL, "no device");
		return 1;
	}
	note_ignored(o);
	return 0;
}

/* The job's stack; it is a user from its setup, or (--create_serialize=0) its init, to its cleanup. */
static struct shared *use_stack(struct thread_data *td)
{
	struct options *o = td->eo;
	char *path;

	if (o->shared || check_options(td))
		return o->shared;
	path = realpath(o->stack, NULL);
	pthread_mutex_lock(&lock);
	o->shared = find_stack(path ? path : o->stack);
	if (!o->shared)
		o->shared = open_stack(td, path ? path : o->stack);
	if (o->shared)
		o->shared->users++;
	pthread_mutex_unlock(&lock);
	free(path);
	return o->shared;
}

static int set_up_file(struct thread_data *td, struct shared *shared, struct fio_file *f)
{
	struct options *o = td->eo;
	struct drystone_device_info info;
	char poll[8] = "";
	int ret = drystone_device_info(shared->stack, f->file_name, &info);

	if (ret)
		return refuse(td, ret, "--filename");
	f->real_file_size = info.size;
	f->filetype = FIO_TYPE_BLOCK;
	fio_file_set_size_known(f);
	drystone_attribute_get(shared->stack, f->file_name, "queue/io_poll", poll, sizeof(poll));
	if (o->hipri && poll[0] != '1' && td->thread_number == 1)
		log_err("fio: drystone: note: `%s` is not polled (queue/io_poll); hipri looks for "
			"completions without sleep\n", f->file_name);
	return 0;
}

static int setup(struct thread_data *td)
{
	struct shared *shared;
	struct fio_file *f;
	unsigned int i;

	shared = use_stack(td);
	if (!shared)
		return 1;
	for_each_file(td, f, i)
		if (set_up_file(td, shared, f))
			return 1;
	return 0;
}

/* --- a job --- */

static void free_job(struct job *job)
{
	free(job->batch);
	free(job->done);
	free(job);
}

static int init(struct thread_data *td)
{
	struct options *o = td->eo;
	struct shared *shared = use_stack(td);
	struct job *job;
	int ret;

	if (!shared)
		return 1;
	job = calloc(1, sizeof(*job));
	if (!job) {
		td_verror(td, ENOMEM, "job");
		return 1;
	}
	job->depth = td->o.iodepth;
	job->batch = calloc(job->depth, sizeof(*job->batch));
	job->done = calloc(job->depth, sizeof(*job->done));
	ret = job->batch && job->done ? drystone_context_open(shared->stack, &job->context) : -ENOMEM;
	if (!ret && o->throttle_group)
		ret = drystone_context_group(job->context, o->throttle_group);
	if (ret) {
		drystone_context_close(job->context, 0);
		free_job(job);
		return refuse(td, ret, "init");
	}
	td->io_ops_data = job;
	return 0;
}

static void cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	struct options *o = td->eo;

	if (job) {
		int ret = drystone_context_close(job->context, CLOSE_TIMEOUT);

		if (ret)
			refuse(td, ret, "cleanup");
		free_job(job);
	}
	if (o && o->shared) {
		leave_stack(td, o->shared);
		o->shared = NULL;
	}
}

static int iomem_alloc(struct thread_data *td, size_t size)
{
	struct job *job = td->io_ops_data;
	struct options *o = td->eo;
	void *memory = NULL;
	int ret;

	job->own_memory = !o->fixedbufs;
	if (job->own_memory)
		ret = -posix_memalign(&memory, page_size, size);
	else
		ret = drystone_context_memory(job->context, size, &memory);
	if (ret == 1 && td->thread_number == 1)
		log_err("fio: drystone: note: fixedbufs: %s\n", drystone_last_error());
	td->orig_buffer = memory;
	return ret < 0;
}

static void iomem_free(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job || !job->own_memory)
		return;
	if (drystone_outstanding(job->context) > 0) {
		int ret = drystone_context_close(job->context, CLOSE_TIMEOUT);

		if (ret) {
			/* A driver may still use the buffers: they stay. */
			refuse(td, ret, "iomem_free");
			return;
		}
		job->context = NULL;
	}
	free(td->orig_buffer);
}

static int open_file(struct thread_data *td, struct fio_file *f)
{
	struct job *job = td->io_ops_data;
	int device = drystone_context_device(job->context, f->file_name);

	if (device < 0)
		return refuse(td, device, "open");
	if (f->real_file_size < f->file_offset + f->io_size) {
		log_err("fio: drystone: `%s` has %llu bytes, fewer than --offset and --size ask for\n",
			f->file_name, (unsigned long long)f->real_file_size);
		td_verror(td, ENOSPC, "size");
		return 1;
	}
	FILE_SET_ENG_DATA(f, (void *)(uintptr_t)device);
	return 0;
}

/* Nothing is cached in this process but by the stack's own devices. */
static int invalidate(struct thread_data fio_unused *td, struct fio_file fio_unused *f)
{
	return 0;
}

/* --- I/O --- */

/* Whether the operation is one of ours. */
static bool describe(struct thread_data *td, const struct io_u *io_u, struct drystone_io *io)
{
	struct options *o = td->eo;

	*io = (struct drystone_io) {
		.tag = (uintptr_t)io_u,
		.offset = io_u->offset,
		.length = io_u->xfer_buflen,
		.device = (uintptr_t)FILE_ENG_DATA(io_u->file),
		.flags = o->nowait ? DRYSTONE_NOWAIT : 0,
		.priority_class = io_u->ioprio >> IOPRIO_CLASS_SHIFT,
		.priority_level = io_u->ioprio & IOPRIO_MAX_PRIO,
	};
	switch (io_u->ddir) {
	case DDIR_READ:
		io->op = DRYSTONE_READ;
		break;
	case DDIR_WRITE:
		io->op = DRYSTONE_WRITE;
		io->flags |= DRYSTONE_STABLE | (td->o.sync_io ? DRYSTONE_FUA : 0);
		break;
	case DDIR_TRIM:
		io->op = DRYSTONE_DISCARD;
		return true;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
	case DDIR_SYNC_FILE_RANGE:
		io->op = DRYSTONE_FLUSH;
		return true;
	default:
		return false;
	}
	io->buffer = io_u->xfer_buf;
	io->flags |= o->hipri ? DRYSTONE_POLLED : 0;
	return true;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;

	fio_ro_check(td, io_u);
	if (job->queued == job->depth)
		return FIO_Q_BUSY;
	if (!describe(td, io_u, &job->batch[job->queued])) {
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	job->queued++;
	return FIO_Q_QUEUED;
}

/* I/O is issued by commit: its latency begins there. */
static void stamp(struct thread_data *td, const struct job *job)
{
	struct timespec now;
	unsigned int i;

	if (!fio_fill_issue_time(td))
		return;
	fio_gettime(&now, NULL);
	for (i = 0; i < job->queued; i++) {
		struct io_u *io_u = (struct io_u *)(uintptr_t)job->batch[i].tag;

		io_u->issue_time = now;
		io_u_queued(td, io_u);
	}
	if (td->o.read_iolog_file)
		td->last_issue = now;
}

static int commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	int ret;

	if (!job->queued)
		return 0;
	stamp(td, job);
	ret = drystone_submit(job->context, job->batch, job->queued);
	if (ret < 0) {
		refuse(td, ret, "submit");
		return ret;
	}
	io_u_mark_submit(td, job->queued);
	job->queued = 0;
	return 0;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max,
		     const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	struct options *o = td->eo;
	uint64_t timeout = t ? t->tv_sec * 1000000000ull + t->tv_nsec : DRYSTONE_FOREVER;
	unsigned int in_vain = 0;
	int came = 0, ret;

	if (max > job->depth)
		max = job->depth;
	if (!o->hipri)
		return drystone_wait(job->context, job->done, max, min, timeout);
	do {
		ret = drystone_poll(job->context, job->done + came, max - came);
		came += ret > 0 ? ret : 0;
		/* With more jobs than cores, who holds what this one waits for may need the core. */
		if (ret == 0 && ++in_vain % POLLS_IN_VAIN == 0)
			sched_yield();
	} while (ret >= 0 && came < (int)min && !t);
	return ret < 0 ? ret : came;
}

static struct io_u *event(struct thread_data *td, int number)
{
	struct job *job = td->io_ops_data;
	const struct drystone_completion *done = &job->done[number];
	struct io_u *io_u = (struct io_u *)(uintptr_t)done->tag;

	io_u->error = -done->result;
	io_u->resid = done->result ? io_u->xfer_buflen : 0;
	return io_u;
}

struct ioengine_ops ioengine = {
	.name = "drystone",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_RAWIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_MEMALIGN |
		 FIO_NO_OFFLOAD | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = setup,
	.init = init,
	.cleanup = cleanup,
	.iomem_alloc = iomem_alloc,
	.iomem_free = iomem_free,
	.open_file = open_file,
	.invalidate = invalidate,
	.queue = queue,
	.commit = commit,
	.getevents = getevents,
	.event = event,
	.options = options,
	.option_struct_size = sizeof(struct options),
};

/* Structures of another fio would be misread: fio refuses an engine of version 0. */
__attribute__((constructor)) static void check_version(void)
{
	const char *running = dlsym(RTLD_DEFAULT, "fio_version_string");

	if (running && !strncmp(running, DRYSTONE_FIO_NEEDED, strlen(DRYSTONE_FIO_NEEDED)))
		return;
	fprintf(stderr, "fio: drystone: this engine is for %s (engine interface %d), and this is %s: "
		"build it with the headers of this fio (scripts/capi.sh)\n",
		DRYSTONE_FIO_NEEDED, FIO_IOOPS_VERSION, running ? running : "another one");
	ioengine.version = 0;
}
