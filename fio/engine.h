/*
 * What the parts of the engine share: a job's options, and the stacks of the process (stacks.c).
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

/* What is said once in a process, whichever job has reason to say it first. Options that are ignored come first. */
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

/* Say why a call of the library failed, and have the job end. 1. */
int refuse(struct thread_data *td, int error, const char *what);

/* Say a sentence of the engine's own on an option that cannot be, and have the job end. 1. */
int refuse_option(struct thread_data *td, const char *what, const char *sentence);

/* Whether nobody has asked for this note before. Any thread may. */
bool is_first(enum note note);

/* The job's stack, opened if it is the first that names it; NULL if that was refused. */
struct shared *use_stack(struct thread_data *td);

/* The job does not use it any more. Whoever is the last closes it. */
void leave_stack(struct thread_data *td, struct shared *shared);

/* The library's handle. */
drystone_stack *handle_of(const struct shared *shared);

/* Add what the product says of each of the devices to the file that --show names. */
void show_devices(struct thread_data *td, struct shared *shared, char **names, unsigned int count);

#pragma GCC visibility pop

#endif
