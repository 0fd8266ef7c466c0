/*
 * Drystone in a C program: opens a stack, writes, reads back, compares, prints the device's counts.
 *
 *   make capi
 *   gcc -I crates/capi/include examples/c/embed.c -L target/release \
 *       -Wl,-rpath,$PWD/target/release -ldrystone -o embed && ./embed
 */
#include <drystone.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096
#define BLOCKS 8

static const char stack_text[] =
	"[device.left]\n"
	"type = \"ram\"\n"
	"size = \"16MiB\"\n"
	"[device.right]\n"
	"type = \"ram\"\n"
	"size = \"16MiB\"\n"
	"[device.stripe]\n"
	"table = \"0 65536 striped 2 8 left 0 right 0\"\n";

static void check(int64_t result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, drystone_last_error());
		exit(1);
	}
}

/* Does one operation on each block, and waits for all of them. */
static void all_blocks(drystone_context *context, uint32_t device, enum drystone_op op,
		       char memory[BLOCKS][BLOCK])
{
	struct drystone_io ios[BLOCKS] = { 0 };
	struct drystone_completion done[BLOCKS];
	int left = BLOCKS;

	for (int i = 0; i < BLOCKS; i++) {
		ios[i].tag = i;
		ios[i].op = op;
		ios[i].device = device;
		ios[i].offset = (uint64_t)i * BLOCK;
		ios[i].length = BLOCK;
		ios[i].buffer = memory[i];
	}
	check(drystone_submit(context, ios, BLOCKS), "submit");
	while (left > 0) {
		int came = drystone_wait(context, done, BLOCKS, left, DRYSTONE_FOREVER);

		check(came, "wait");
		for (int i = 0; i < came; i++) {
			if (done[i].result == 0)
				continue;
			fprintf(stderr, "block %d: %s\n", (int)done[i].tag, strerror(-done[i].result));
			exit(1);
		}
		left -= came;
	}
}

int main(void)
{
	static char written[BLOCKS][BLOCK], read[BLOCKS][BLOCK];
	char stat[256];
	drystone_stack *stack;
	drystone_context *context;
	int device;

	check(drystone_stack_open_text(DRYSTONE_ABI_VERSION, stack_text, NULL, 1, &stack), "stack");
	check(drystone_context_open(stack, &context), "context");
	device = drystone_context_device(context, "stripe");
	check(device, "device");

	for (int i = 0; i < BLOCKS; i++)
		memset(written[i], 'a' + i, BLOCK);
	all_blocks(context, device, DRYSTONE_WRITE, written);
	all_blocks(context, device, DRYSTONE_READ, read);
	if (memcmp(written, read, sizeof(written))) {
		fprintf(stderr, "the data read differs from the data written\n");
		return 1;
	}

	check(drystone_context_close(context, DRYSTONE_FOREVER), "close");
	check(drystone_attribute_get(stack, "stripe", "stat", stat, sizeof(stat)), "stat");
	printf("libdrystone %s: %d blocks written and read back\n%s\n", drystone_version(), BLOCKS,
	       stat);
	check(drystone_stack_close(stack), "close");
	return 0;
}
