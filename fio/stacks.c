/*
 * The stacks of the process: each is opened once and shared by all jobs that name it.
 *
 * Invariants
 * - A stack is open while a job that was set up has not been cleaned up. Stacks that are left at
 *   the end of the process, because fio gave up, are closed then.
 * - `lock` protects the list, the numbers of users and the notes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"

/* Room for the attributes of a device: some 60. */
#define SHOWN_MAX 65536

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
static unsigned int noted;	/* under the lock: bits of enum note */

int refuse(struct thread_data *td, int error, const char *what)
{
	log_err("fio: drystone: %s: %s\n", what, drystone_last_error());
	td_verror(td, error < 0 ? -error : EINVAL, what);
	return 1;
}

int refuse_option(struct thread_data *td, const char *what, const char *sentence)
{
	log_err("fio: drystone: %s\n", sentence);
	td_verror(td, EINVAL, what);
	return 1;
}

bool is_first(enum note note)
{
	bool first;

	pthread_mutex_lock(&lock);
	first = !(noted & 1u << note);
	noted |= 1u << note;
	pthread_mutex_unlock(&lock);
	return first;
}

drystone_stack *handle_of(const struct shared *shared)
{
	return shared->stack;
}

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
	char *copy = strdup(path);
	int ret;

	if (!shared || !copy) {
		free(shared);
		free(copy);
		td_verror(td, ENOMEM, "stack");
		return NULL;
	}
	ret = drystone_stack_open_file(DRYSTONE_ABI_VERSION, path, 0, &shared->stack);
	if (ret) {
		free(shared);
		free(copy);
		refuse(td, ret, "the stack cannot be opened");
		return NULL;
	}
	shared->path = copy;
	shared->pid = getpid();
	shared->next = stacks;
	stacks = shared;
	return shared;
}

/* The lock is held, and the stack has no users. */
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

void leave_stack(struct thread_data *td, struct shared *shared)
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

/* --- options of a job --- */

static void note_ignored(const struct options *o)
{
	const struct {
		const char *name;
		unsigned int set;
	} ignored[] = {
		[NOTE_REGISTERFILES] = { "registerfiles", o->registerfiles },
		[NOTE_NONVECTORED] = { "nonvectored", o->nonvectored },
		[NOTE_SQTHREAD_POLL] = { "sqthread_poll", o->sqthread_poll },
		[NOTE_SQTHREAD_POLL_CPU] = { "sqthread_poll_cpu", o->sqthread_poll_cpu },
		[NOTE_FORCE_ASYNC] = { "force_async", o->force_async },
		[NOTE_UNCACHED] = { "uncached", o->uncached },
	};
	enum note i;

	for (i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		if (ignored[i].set && is_first(i))
			log_err("fio: drystone: note: %s has no meaning here and is ignored\n",
				ignored[i].name);
}

static int check_options(struct thread_data *td)
{
	struct options *o = td->eo;

	if (!td->o.use_thread)
		return refuse_option(td, "jobs are not threads",
				     "the jobs share a stack in one process, and forked jobs cannot: "
				     "add --thread");
	if (!o->stack)
		return refuse_option(td, "no stack", "--stack is missing: name a stack file, and by "
				     "--filename a device of it");
	if (!td->o.filename || !td->files_index)
		return refuse_option(td, "no device", "--filename is missing: name a device of the "
				     "stack");
	if (fio_option_is_set(&td->o, mem_type))
		return refuse_option(td, "mem", "the engine has memory of its own: leave --mem and "
				     "--iomem out (--fixedbufs makes it known to the kernel)");
	note_ignored(o);
	return 0;
}

/* A job is a user from its setup, or (--create_serialize=0) its init, to its cleanup. */
struct shared *use_stack(struct thread_data *td)
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

/* --- attributes of a device --- */

/* Writes one line. The name is one of the stack's: nothing in it needs quoting. */
static int show_device(FILE *to, const struct shared *shared, const char *name, char *said)
{
	char request[256];
	int length;

	snprintf(request, sizeof(request), "{\"command\":\"show\",\"arguments\":{\"device\":\"%s\"}}",
		 name);
	length = drystone_stack_control(shared->stack, request, said, SHOWN_MAX);
	if (length < 0 || length >= SHOWN_MAX)
		return length < 0 ? length : -EOVERFLOW;
	return fprintf(to, "%s\n", said) < 0 ? -EIO : 0;
}

void show_devices(struct thread_data *td, struct shared *shared, char **names, unsigned int count)
{
	const char *path = ((struct options *)td->eo)->show;
	unsigned int i;
	char *said;
	FILE *to;
	int ret = 0;

	pthread_mutex_lock(&lock);
	said = malloc(SHOWN_MAX);
	to = fopen(path, "a");
	if (!said || !to)
		ret = -errno;
	for (i = 0; i < count && !ret; i++)
		ret = show_device(to, shared, names[i], said);
	if (to && fclose(to) && !ret)
		ret = -errno;
	free(said);
	pthread_mutex_unlock(&lock);
	if (ret) {
		log_err("fio: drystone: --show: %s: %s\n", path, strerror(-ret));
		td_verror(td, -ret, "show");
	}
}
