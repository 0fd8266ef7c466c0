/*
 * libdrystone_fio.so: Drystone as an external ioengine of fio 3.33.
 *
 *   fio --ioengine=external:libdrystone_fio.so --stack=FILE --filename=DEVICE --thread ...
 *
 * A stack is opened once in the process and shared by all jobs that name it (stacks.c). Each thread
 * has a context of its own. Only the C API (drystone.h) is used. docs/fio.md is for users.
 *
 * Invariants
 * - Of a job's io_us, `queued` wait in `batch`, the others that fio knows as queued are in flight.
 * - Buffers are not freed while I/O of the context is in flight.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "lib/rand.h"
#include "optgroup.h"

/*
 * The fio whose headers this was built with. FIO_IOOPS_VERSION does not change with its structures.
 */
#ifndef DRYSTONE_FIO_NEEDED
#define DRYSTONE_FIO_NEEDED "fio-3.33"
#endif

/* The end of a job waits for I/O that drivers have, as long as a request may take. */
#define CLOSE_TIMEOUT (30ull * 1000 * 1000 * 1000)

/* Empty polls after which the thread yields its core, as `drystone bench` does. */
#define POLLS_IN_VAIN 64

/* The state of a job, from its init to its cleanup. */
struct job {
	drystone_context *context;
	struct drystone_io *batch;
	struct drystone_completion *done;
	unsigned int depth;
	unsigned int queued;
	int failed;		/* the library's error for the batch, which is final */
	bool own_memory;	/* the buffers are malloc's, not the context's */
	char **names;		/* of its devices: fio frees its files before cleanup */
	unsigned int devices;
};

#define OPTION(name_, type_, help_) { \
	.name = #name_, .lname = #name_, .type = type_, .off1 = offsetof(struct options, name_), \
	.help = help_, .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_IOURING }

/* An option with a value for reads and one for writes. */
#define OPTION2(name_, least_, most_, help_) { \
	.name = #name_, .lname = #name_, .type = FIO_OPT_INT, \
	.off1 = offsetof(struct options, name_[DDIR_READ]), \
	.off2 = offsetof(struct options, name_[DDIR_WRITE]), \
	.minval = least_, .maxval = most_, .interval = 1, \
	.help = help_, .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_IOURING }

static struct fio_option options[] = {
	OPTION(stack, FIO_OPT_STR_STORE, "Stack file whose devices --filename names"),
	OPTION(throttle_group, FIO_OPT_STR_STORE, "Throttle group of the stack that the I/O belongs to"),
	OPTION(show, FIO_OPT_STR_STORE,
	       "When a job ends, add what `drystone show` says of its devices to this file"),
	OPTION(hipri, FIO_OPT_STR_SET, "Poll for completions, where the device can be polled"),
	OPTION(fixedbufs, FIO_OPT_STR_SET, "Make the buffers known to the kernel beforehand"),
	OPTION(nowait, FIO_OPT_BOOL, "Fail with EAGAIN instead of waiting for a tag"),
	OPTION2(cmdprio_percentage, 0, 100,
		"Percentage of reads,writes that have the priority of cmdprio"),
	OPTION2(cmdprio_class, IOPRIO_CLASS_RT, IOPRIO_CLASS_IDLE,
		"Their class: 1 real-time, 2 best effort, 3 idle"),
	OPTION2(cmdprio, 0, 7, "Their level: 0 first, 7 last"),
	{ .name = "cmdprio_bssplit", .lname = "cmdprio_bssplit", .type = FIO_OPT_UNSUPPORTED,
	  .help = "this engine has no priorities by block size: use cmdprio_percentage" },
	OPTION(registerfiles, FIO_OPT_STR_SET, "Ignored: files are always registered"),
	OPTION(nonvectored, FIO_OPT_INT, "Ignored: an I/O of one buffer is never vectored"),
	OPTION(sqthread_poll, FIO_OPT_STR_SET, "Ignored: the job's own thread submits"),
	OPTION(sqthread_poll_cpu, FIO_OPT_INT, "Ignored: the job's own thread submits"),
	OPTION(force_async, FIO_OPT_INT, "Ignored: the stack decides"),
	OPTION(uncached, FIO_OPT_INT, "Ignored: the stack file decides (direct = true)"),
	{ .name = NULL },
};

/* --- setting up, in fio's main thread --- */

static int set_up_file(struct thread_data *td, struct shared *shared, struct fio_file *f)
{
	struct options *o = td->eo;
	struct drystone_device_info info;
	char poll[8] = "";
	int ret = drystone_device_info(handle_of(shared), f->file_name, &info);

	if (ret)
		return refuse(td, ret, "--filename");
	f->real_file_size = info.size;
	f->filetype = FIO_TYPE_BLOCK;
	fio_file_set_size_known(f);
	drystone_attribute_get(handle_of(shared), f->file_name, "queue/io_poll", poll, sizeof(poll));
	if (o->hipri && poll[0] != '1' && is_first(NOTE_NOT_POLLED))
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
	while (job->devices > 0)
		free(job->names[--job->devices]);
	free(job->names);
	free(job->batch);
	free(job->done);
	free(job);
}

/* Returns false if there is no memory. */
static bool make_job(struct thread_data *td, struct job *job)
{
	struct fio_file *f;
	unsigned int i;

	job->depth = td->o.iodepth;
	job->batch = calloc(job->depth, sizeof(*job->batch));
	job->done = calloc(job->depth, sizeof(*job->done));
	job->names = calloc(td->files_index, sizeof(*job->names));
	if (!job->batch || !job->done || !job->names)
		return false;
	for_each_file(td, f, i) {
		job->names[i] = strdup(f->file_name);
		if (!job->names[i])
			return false;
		job->devices++;
	}
	return true;
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
	if (!job || !make_job(td, job)) {
		if (job)
			free_job(job);
		td_verror(td, ENOMEM, "job");
		return 1;
	}
	ret = drystone_context_open(handle_of(shared), &job->context);
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
		if (o->show)
			show_devices(td, o->shared, job->names, job->devices);
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
	if (ret == 1 && is_first(NOTE_NOT_KNOWN))
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

/* Only the stack's own devices cache anything in this process. */
static int invalidate(struct thread_data fio_unused *td, struct fio_file fio_unused *f)
{
	return 0;
}

/* --- I/O --- */

/* Some reads and writes have another priority than the job; fio's random numbers choose them. */
static void choose_priority(struct thread_data *td, struct io_u *io_u)
{
	const struct options *o = td->eo;
	const int ddir = io_u->ddir;
	const unsigned int percentage = ddir < DIRECTIONS ? o->cmdprio_percentage[ddir] : 0;
	int class;

	if (!percentage || rand_between(&td->prio_state, 0, 99) >= percentage)
		return;
	class = o->cmdprio_class[ddir] ? o->cmdprio_class[ddir] : IOPRIO_CLASS_RT;
	io_u->ioprio = ioprio_value(class, o->cmdprio[ddir]);
}

/* Returns whether the engine supports the operation. */
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
	choose_priority(td, io_u);
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

	if (!job->queued || job->failed)
		return job->failed;
	stamp(td, job);
	ret = drystone_submit(job->context, job->batch, job->queued);
	if (ret < 0) {
		/* fio repeats what it still counts as queued; the error was reported once. */
		job->failed = ret;
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
		/* With more jobs than cores, the holder of an awaited tag may need the core. */
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
