/*
 * drystone.h: Drystone's block layer for programs in C.
 *
 * A program opens a stack (a stack file, docs/stack-file.md, or its text), opens a context for each of its
 * threads, submits I/O to devices of the stack and reaps completions. Link with -ldrystone.
 *
 * Words
 *   stack    the devices and groups that a stack file describes. Its exports are not served, and what [server] says
 *            of threads and polling is for servers.
 *   context  a queue pair of one thread: what is submitted to it is reaped from it.
 *   device   a name of the stack file; a context knows it by a number.
 *
 * Errors
 *   Functions that can fail return a negative errno. drystone_last_error() then gives one sentence that says
 *   what was wrong and where. An I/O that fails has its negative errno in its completion.
 *   These rules hold for all functions, and are not repeated below:
 *     -EINVAL           a pointer is NULL, or out of line, where that is not permitted in words; a text is not
 *                       UTF-8; an array has more than INT_MAX elements
 *     -EPERM            this is a child of fork(2), and the stack or context is its parent's
 *     -ENOTRECOVERABLE  there was a fault inside of the library; a context takes no further call after one, nor
 *                       while another thread is in a call on it
 *
 * Handles
 *   Once a closing function has given 0 (or -EIO, of a stack) the handle is dead: to pass it to any function again,
 *   that one included, is undefined, like a use after free(3). If it gives another errno the handle lives on.
 *
 * Threads
 *   Functions on a stack may be called from any thread, several at a time, but for drystone_stack_close().
 *   Functions on a context must be called by one thread at a time, which need not be the one that opened
 *   it; drystone_context_wake() may be called by any. A thread may stay away for as long as it likes after
 *   any call: no other thread waits for it.
 *   A child of fork(2) has none of its parent's threads and rings: with its stacks and contexts every call fails with
 *   -EPERM, also those that close them, and the parent goes on as if there were no child. It may open stacks of its
 *   own. A child that shares its parent's memory (vfork(2), clone(2) with CLONE_VM) must make no call.
 *
 * Blocking
 *   Submitting, reaping and polling never wait. Any other function that may wait says so, and for how long.
 *
 * Signals
 *   Threads of the library take none. A write past the process's limit of file size (RLIMIT_FSIZE) raises SIGXFSZ in the
 *   thread that makes the call, and its default action ends the process, as for write(2). Where that signal is
 *   ignored or blocked the I/O ends with -ENOSPC; a program with such a limit should ignore it.
 *
 * Memory
 *   Buffers belong to the library from drystone_submit() until their I/O has been reaped, or the context was
 *   closed with success. Everything else that is passed in is read during the call only. Times are
 *   nanoseconds, sizes and offsets bytes.
 *
 * No panic of the library reaches the program.
 */
#ifndef DRYSTONE_H
#define DRYSTONE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The version of this interface. It grows when a program has to be compiled again; then the library's file name
 * changes, too (libdrystone.so.1). Functions that open a stack compare it with the library's.
 */
#define DRYSTONE_ABI_VERSION 1u

/* As a timeout: wait for as long as it takes. */
#define DRYSTONE_FOREVER UINT64_MAX

typedef struct drystone_stack drystone_stack;
typedef struct drystone_context drystone_context;

/* Operations; the numbers are Linux's (blk_types.h). */
enum drystone_op {
	DRYSTONE_READ = 0,
	DRYSTONE_WRITE = 1,
	DRYSTONE_FLUSH = 2,		/* all writes that were reaped before are durable then */
	DRYSTONE_DISCARD = 3,		/* the range need not be kept */
	DRYSTONE_WRITE_ZEROES = 9	/* the range reads as zeroes */
};

/* Flags of an I/O. */
enum drystone_flag {
	DRYSTONE_FUA = 1 << 0,		/* a write is durable when it completes */
	DRYSTONE_PREFLUSH = 1 << 1,	/* flush before the write */
	DRYSTONE_SYNC = 1 << 2,		/* somebody waits for it: schedulers prefer it */
	DRYSTONE_NOWAIT = 1 << 3,	/* fail with -EAGAIN instead of waiting for a tag */
	DRYSTONE_POLLED = 1 << 4,	/* its end is looked for, by drystone_poll() or a wait */
	DRYSTONE_BACKGROUND = 1 << 5,	/* may yield to everything else */
	DRYSTONE_NOUNMAP = 1 << 6,	/* write zeroes: keep the range allocated */
	DRYSTONE_FAST_ZERO = 1 << 7,	/* write zeroes: fail rather than be slow */
	DRYSTONE_NOMERGE = 1 << 8,	/* never merged with another */
	DRYSTONE_STABLE = 1 << 9	/* a write's buffer does not change until it completes */
};

/* Priority classes, as Linux's (ioprio_set(2)). */
enum drystone_priority_class {
	DRYSTONE_PRIORITY_NONE = 0,
	DRYSTONE_PRIORITY_RT = 1,
	DRYSTONE_PRIORITY_BE = 2,
	DRYSTONE_PRIORITY_IDLE = 3
};

/* One I/O. Set what is not used to 0. */
struct drystone_io {
	uint64_t tag;		/* anything; comes back with the completion */
	uint64_t offset;	/* a multiple of the device's logical block; unused in a flush */
	uint64_t length;	/* likewise, and not 0: only a flush has none */
	/*
	 * Reads and writes: memory of `length` bytes, of any alignment (direct I/O of a file copies what
	 * is not aligned to drystone_device_info.memory_alignment, which costs time). If `vectors` is not
	 * 0: an array of so many struct iovec, at most 1024, none of them NULL, which add up to `length`; the
	 * array is read in the call. Other operations do not look at it.
	 */
	void *buffer;
	uint32_t device;	/* as drystone_context_device() gave it */
	uint32_t vectors;
	uint16_t op;		/* enum drystone_op */
	uint16_t flags;		/* enum drystone_flag, or-ed */
	uint8_t priority_class;	/* enum drystone_priority_class */
	uint8_t priority_level;	/* 0 (first) to 7 */
	uint16_t reserved;	/* 0 */
};

/* How an I/O ended. */
struct drystone_completion {
	uint64_t tag;
	int32_t result;		/* 0: all of it was done; or a negative errno */
	uint32_t reserved;
};

/* A device, as of now. */
struct drystone_device_info {
	uint64_t size;			/* may grow */
	uint64_t max_discard;		/* most bytes of a discard below; 0: there is none */
	uint64_t max_write_zeroes;	/* the same of write zeroes */
	uint32_t logical_block;		/* unit of offsets and lengths */
	uint32_t physical_block;
	uint32_t io_min;		/* preferred least I/O */
	uint32_t io_opt;		/* preferred I/O; 0: none */
	uint32_t memory_alignment;	/* of buffers that are not copied; 1: any */
	uint32_t features;		/* enum drystone_feature, or-ed */
};

/* Features of a device. */
enum drystone_feature {
	DRYSTONE_READ_ONLY = 1 << 0,
	DRYSTONE_WRITE_CACHE = 1 << 1,	/* what is written is durable only after a flush */
	DRYSTONE_HAS_FUA = 1 << 2,	/* a write through that cache costs no flush */
	DRYSTONE_ROTATIONAL = 1 << 3,
	DRYSTONE_HAS_FAST_ZERO = 1 << 4
};

/* The library's ABI version: DRYSTONE_ABI_VERSION of the header it was built with. */
uint32_t drystone_abi_version(void);

/* The library's own version, as "0.1.0". Lives as long as the program. */
const char *drystone_version(void);

/*
 * The fault of the latest call that failed on this thread, in one sentence or more; "" if none has. Never NULL.
 * Lives until this thread's next call that fails, or its end.
 */
const char *drystone_last_error(void);

/* --- stacks --- */

/*
 * Open the stack that a file describes. Relative paths in it start at its folder. `abi` is DRYSTONE_ABI_VERSION.
 * `threads` says how many contexts will be busy at a time (0: as many as there are cores); more may be opened.
 * Reads and perhaps makes files; assembling an array reads its members.
 *
 * 0, -EPROTO (the versions differ), -ENOENT or another errno of reading the file, -EINVAL (what it says is
 * wrong, or a device cannot be opened; the message shows where). If it fails `stack` is left as it was.
 */
int drystone_stack_open_file(uint32_t abi, const char *path, uint32_t threads,
			     drystone_stack **stack);

/*
 * The same with the text of a stack file, and the same errors. `folder` is where relative paths start; NULL is the
 * current folder.
 */
int drystone_stack_open_text(uint32_t abi, const char *text, const char *folder, uint32_t threads,
			     drystone_stack **stack);

/*
 * Close a stack, all of whose contexts have been closed: flush every device and mark arrays clean. Waits until
 * that is done, for as long as the devices take. NULL is closed already.
 *
 * 0; -EBUSY if contexts are open: then the stack stays open; -EIO if something could not be flushed or
 * stopped: then it is closed all the same.
 */
int drystone_stack_close(drystone_stack *stack);

/*
 * Ask or tell the stack something, in the words of the control socket (docs/control.md): a line of JSON, as
 * {"command":"iostat"}. The answer, a line of JSON too, goes to `answer`, cut to `size` bytes with its final 0; NULL
 * or a size of 0 only asks for the length.
 * Commands that suspend a volume or change an array wait as long as they say there; others do not wait for I/O.
 *
 * The length of the whole answer without its final 0 (as of snprintf(3)); an answer may tell of an error.
 */
int drystone_stack_control(drystone_stack *stack, const char *request, char *answer, size_t size);

/* Describe a device. 0, or -ENOENT: there is no such device, and `info` is left as it was. */
int drystone_device_info(drystone_stack *stack, const char *device,
			 struct drystone_device_info *info);

/*
 * An attribute of a device, named and written as in sysfs ("queue/scheduler", "size", "stat"), to `value`, cut to `size`
 * bytes with its final 0; NULL or a size of 0 only asks for the length. "size" is in bytes. Does not wait for I/O.
 *
 * The length of the whole value without its final 0, or -ENOENT (no such device, or it has no such attribute).
 */
int drystone_attribute_get(drystone_stack *stack, const char *device, const char *attribute,
			   char *value, size_t size);

/*
 * Set an attribute of a device, on the live device. Attributes of arrays (md/...) wait until the array's manager has
 * done it, for a minute at the most; others do not wait for I/O.
 *
 * 0, -ENOENT (no such device or attribute), -ERANGE (the message says what is permitted), -EOPNOTSUPP (it can only be
 * read, or cannot be changed on this device), -EINVAL (`value` is longer than 256 bytes, or `attribute` than 64), or -EIO (it
 * was tried and failed, or the array's manager has not done it in that minute). If it fails nothing has changed, but
 * for a manager that goes on with it: then the message says so.
 */
int drystone_attribute_set(drystone_stack *stack, const char *device, const char *attribute,
			   const char *value);

/* --- contexts --- */

/*
 * Open a context. 0, or the errno that the kernel refused its ring with (-EMFILE, -ENOMEM, ...); then `context` is left
 * as it was.
 */
int drystone_context_open(drystone_stack *stack, drystone_context **context);

/*
 * Close a context. I/O that no driver has yet (kept by a suspended volume or a limit, waiting for a tag) ends with
 * -ECANCELED; the rest is waited for, at most `timeout`. Completions that were not reaped are lost. NULL is closed
 * already.
 *
 * 0: it is closed, and all buffers are the program's again. -ETIMEDOUT: drivers have not given back all; the
 * context stays, and takes no more I/O; reap, or close it again later.
 */
int drystone_context_close(drystone_context *context, uint64_t timeout);

/*
 * The number of a device in this context. Asking again gives the same number. -ENOENT if there is no such device, or the
 * errno that it cannot be opened with. One that is part of a volume or an array when this is asked for is only read here:
 * writes, discards and write-zeroes of it are refused with -EINVAL, because they would spoil what stands on it.
 */
int drystone_context_device(drystone_context *context, const char *device);

/*
 * I/O submitted from now on belongs to this throttle group of the stack ("tenants/a"; "" is the root). 0 or -ENOENT.
 */
int drystone_context_group(drystone_context *context, const char *path);

/*
 * Memory of `size` bytes, zeroed and aligned to a page, that the kernel knows beforehand where it permits that, which saves
 * it work for each I/O on a file. Freed when the context is closed.
 *
 * 0; 1 if the kernel does not know it (the limit of locked memory, RLIMIT_MEMLOCK, or this is more than the 16th time for
 * the context; drystone_last_error() says why): the memory can be used all the same; -EINVAL (`size` is 0); -ENOMEM.
 */
int drystone_context_memory(drystone_context *context, size_t size, void **memory);

/*
 * Submit I/Os, all or none. Never waits. I/Os that belong together go into one call: neighbours merge, and the clock is
 * read once. I/Os may complete in any order; what a device refuses completes with an errno.
 *
 * `count` (which may be 0, and `ios` NULL then), or -EINVAL if one of them makes no sense (the message says which): no such
 * operation, flag or device, a length of 0, what is not a whole number of sectors of 512 bytes, no memory, a write to
 * what is part of something. Then none was submitted. -ESHUTDOWN if the context is being closed.
 */
int drystone_submit(drystone_context *context, const struct drystone_io *ios, size_t count);

/*
 * Reap up to `count` completions, without waiting. How many came, 0 if none did. It fails only for what is wrong with the
 * call itself (see Errors above; with a `count` of 0 `completions` may be NULL): a failed I/O is a completion.
 */
int drystone_reap(drystone_context *context, struct drystone_completion *completions, size_t count);

/* The same, after looking for the ends of polled I/O, and with the same errors. */
int drystone_poll(drystone_context *context, struct drystone_completion *completions, size_t count);

/*
 * Reap up to `count` completions, waiting until there are `least`, or everything in flight has ended, or `timeout` has
 * passed, or somebody woke the context. How many came, which may be fewer than `least`; 0 is no error. It fails as
 * drystone_reap() does. A `least` above `count` is `count`.
 */
int drystone_wait(drystone_context *context, struct drystone_completion *completions, size_t count,
		  size_t least, uint64_t timeout);

/* Make the present drystone_wait(), or else the next one, return, and the event descriptor readable; from any thread. 0. */
int drystone_context_wake(drystone_context *context);

/* I/Os submitted and not reaped, or a negative errno (see Errors above). */
int64_t drystone_outstanding(drystone_context *context);

/*
 * For event loops: a descriptor that is readable while something may be reaped, for poll(2) or an epoll of
 * the program's, level-triggered. It is the context's: do not read or close it. -EMFILE and the like if there is none.
 *
 * The loop: drystone_context_clear(), then drystone_reap(), and if nothing came, sleep until the descriptor is
 * readable or drystone_context_timeout() has passed.
 */
int drystone_context_event(drystone_context *context);

/* Forget what made the descriptor readable, and do what was due. 0. Reap afterwards. */
int drystone_context_clear(drystone_context *context);

/*
 * In how many nanoseconds drystone_context_clear() has to be called although the descriptor may not be readable; -1: not
 * before it is; less than that: a negative errno (see Errors above). In a child of fork(2) it is -1, too, which is -EPERM:
 * there drystone_context_clear() fails.
 */
int64_t drystone_context_timeout(drystone_context *context);

#ifdef __cplusplus
}
#endif

#endif
