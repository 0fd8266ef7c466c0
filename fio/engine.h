/*
 * Shared by the parts of the engine: a job's options, and the stacks of the process (stacks.c).
 */
#ifndef DRYSTONE_FIO_ENGINE_H
#define DRYSTONE_FIO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>

#include "fio.h"

#include "drystone.h"

/* Reads and writes, as fio numbers them. */
#define DIRECTIONS 2

/* A stack that is open in this process. */
struct shared;

struct options {
	struct shared *shared;	/* no option, and fio wants none at offset 0: the job uses this stack */
	char *stack;
	char *throttle_group;
	char *show;
	unsigned int hipri;
	unsigned int fixedbufs;
	unsigned int nowait;
	unsigned int cmdprio_percentage[DIRECTIONS];
	unsigned int cmdprio_class[DIRECTIONS];
	unsigned int cmdprio[DIRECTIONS];
	unsigned int registerfiles;
	unsigned int nonvectored;
	unsigned int sqthread_poll;
	unsigned int sqthread_poll_cpu;
	unsigned int force_async;
	unsigned int uncached;
};

/* Notes printed once in a process, by the first job with a reason. Ignored options come first. */
enum note {
	NOTE_REGISTERFILES,
	NOTE_NONVECTORED,
	NOTE_SQTHREAD_POLL,
	NOTE_SQTHREAD_POLL_CPU,
	NOTE_FORCE_ASYNC,
	NOTE_UNCACHED,
	NOTE_NOT_POLLED,
	NOTE_NOT_KNOWN,
};

#pragma GCC visibility push(hidden)

/* Reports why a call of the library failed, and ends the job. Returns 1. */
int refuse(struct thread_data *td, int error, const char *what);

/* Reports the engine's sentence on an impossible option, and ends the job. Returns 1. */
int refuse_option(struct thread_data *td, const char *what, const char *sentence);

/* Returns whether this is the first request for this note. Any thread may call it. */
bool is_first(enum note note);

/* The job's stack, opened by the first job that names it; NULL if that was refused. */
struct shared *use_stack(struct thread_data *td);

/* Ends the job's use of the stack. The last user closes it. */
void leave_stack(struct thread_data *td, struct shared *shared);

/* The library's handle. */
drystone_stack *handle_of(const struct shared *shared);

/* Adds the attributes of each of the devices to the file that --show names. */
void show_devices(struct thread_data *td, struct shared *shared, char **names, unsigned int count);

#pragma GCC visibility pop

#endif
