/*
 * A program that forks while it has a stack open and I/O in flight. Each call of the child on its
 * parent's objects is refused. The child opens a stack of its own, and exits normally. The parent
 * continues to work.
 */
#define _POSIX_C_SOURCE 200809L	/* fork, alarm */

#include <drystone.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096

/* Arrays and slow devices have threads of their own; a file may have helpers. */
static const char parents[] =
	"[device.slow]\n"
	"type = \"null\"\n"
	"irqmode = \"timer\"\n"
	"completion_nsec = \"50ms\"\n"
	"[device.file]\n"
	"type = \"file\"\n"
	"path = \"parent.img\"\n"
	"size = \"1MiB\"\n"
	"[device.m0]\n"
	"type = \"ram\"\n"
	"size = \"8MiB\"\n"
	"[device.m1]\n"
	"type = \"ram\"\n"
	"size = \"8MiB\"\n"
	"[device.m2]\n"
	"type = \"ram\"\n"
	"size = \"8MiB\"\n"
	"[device.array]\n"
	"type = \"raid5\"\n"
	"members = [\"m0\", \"m1\", \"m2\"]\n";

static const char childs[] =
	"[device.file]\n"
	"type = \"file\"\n"
	"path = \"child.img\"\n"
	"size = \"1MiB\"\n";

static const char *who = "parent";

static void check(int64_t result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s: %s\n", who, what, drystone_last_error());
		exit(1);
	}
}

static void refused(int64_t result, const char *what)
{
	if (result == -EPERM && strstr(drystone_last_error(), "this is a child of fork"))
		return;
	fprintf(stderr, "%s: %s gives %lld: %s\n", who, what, (long long)result, drystone_last_error());
	exit(1);
}

/* Writes a block of `byte` to a device and reads it back. */
static void use(drystone_context *context, const char *name, int byte)
{
	char written[BLOCK], back[BLOCK];
	struct drystone_io io = { .op = DRYSTONE_WRITE, .length = BLOCK, .buffer = written };
	struct drystone_completion done = { 0 };
	int device = drystone_context_device(context, name);

	check(device, name);
	io.device = device;
	memset(written, byte, BLOCK);
	check(drystone_submit(context, &io, 1), "write");
	check(drystone_wait(context, &done, 1, 1, DRYSTONE_FOREVER), "wait");
	check(done.result, "the write");
	io.op = DRYSTONE_READ;
	io.buffer = back;
	check(drystone_submit(context, &io, 1), "read");
	check(drystone_wait(context, &done, 1, 1, DRYSTONE_FOREVER), "wait");
	check(done.result, "the read");
	if (memcmp(written, back, BLOCK)) {
		fprintf(stderr, "%s: %s: the data read differs from the data written\n", who, name);
		exit(1);
	}
}

/* Each call is refused, and closes nothing of the parent's. */
static void try_parents(drystone_stack *stack, drystone_context *context)
{
	struct drystone_io io = { .op = DRYSTONE_FLUSH };
	struct drystone_completion done;
	struct drystone_device_info info;
	drystone_context *another;
	void *memory;
	char text[64];

	refused(drystone_submit(context, &io, 1), "submit");
	refused(drystone_reap(context, &done, 1), "reap");
	refused(drystone_poll(context, &done, 1), "poll");
	refused(drystone_wait(context, &done, 1, 1, DRYSTONE_FOREVER), "wait");
	refused(drystone_context_wake(context), "wake");
	refused(drystone_outstanding(context), "outstanding");
	refused(drystone_context_event(context), "event");
	refused(drystone_context_clear(context), "clear");
	refused(drystone_context_timeout(context), "timeout");
	refused(drystone_context_device(context, "file"), "device");
	refused(drystone_context_group(context, ""), "group");
	refused(drystone_context_memory(context, BLOCK, &memory), "memory");
	refused(drystone_context_close(context, 0), "close");
	refused(drystone_context_open(stack, &another), "open");
	refused(drystone_device_info(stack, "file", &info), "info");
	refused(drystone_attribute_get(stack, "file", "size", text, sizeof(text)), "get");
	refused(drystone_attribute_set(stack, "file", "queue/nr_requests", "8"), "set");
	refused(drystone_stack_control(stack, "{\"command\":\"list\"}", text, sizeof(text)), "control");
	refused(drystone_stack_close(stack), "close the stack");
}

static void be_the_child(drystone_stack *stack, drystone_context *context)
{
	who = "child";
	alarm(60);	/* bounds a hang */
	try_parents(stack, context);
	check(drystone_stack_open_text(DRYSTONE_ABI_VERSION, childs, NULL, 1, &stack),
	      "a stack of its own");
	check(drystone_context_open(stack, &context), "a context of its own");
	use(context, "file", 'c');
	check(drystone_context_close(context, DRYSTONE_FOREVER), "close");
	check(drystone_stack_close(stack), "close");
	printf("the child had a stack of its own\n");
	exit(0);
}

int main(void)
{
	struct drystone_io io = { .op = DRYSTONE_READ, .length = BLOCK };
	struct drystone_completion done;
	static char block[BLOCK];
	drystone_stack *stack;
	drystone_context *context;
	int status = -1, device;
	pid_t child;

	check(drystone_stack_open_text(DRYSTONE_ABI_VERSION, parents, NULL, 1, &stack), "stack");
	check(drystone_context_open(stack, &context), "context");
	use(context, "file", 'a');
	use(context, "array", 'a');
	device = drystone_context_device(context, "slow");
	check(device, "slow");
	io.device = device;
	io.buffer = block;
	check(drystone_submit(context, &io, 1), "submit");

	child = fork();
	if (child == 0)
		be_the_child(stack, context);
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "the child ended with %#x\n", status);
		return 1;
	}

	if (drystone_wait(context, &done, 1, 1, DRYSTONE_FOREVER) != 1 || done.result != 0) {
		fprintf(stderr, "what was in flight at the fork has not ended\n");
		return 1;
	}
	use(context, "file", 'b');
	use(context, "array", 'b');
	check(drystone_context_close(context, DRYSTONE_FOREVER), "close");
	check(drystone_stack_close(stack), "close");
	printf("the parent went on\n");
	return 0;
}
