// A plugin of qemu's user mode: prints the instructions run so far at each getppid(), which a program calls as a mark.
// The functions are those of qemu-plugin.h, version 1, which Debian does not package.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#define PUBLIC __attribute__((visibility("default")))
enum { ADD = 0, GETPPID = 173 };
struct block;
typedef uint64_t Id;
void qemu_plugin_register_vcpu_tb_trans_cb(Id, void (*)(Id, struct block*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct block*, int, void*, uint64_t);
size_t qemu_plugin_tb_n_insns(const struct block*);
typedef void Call(Id, unsigned, int64_t number, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
void qemu_plugin_register_vcpu_syscall_cb(Id, Call*);

PUBLIC int qemu_plugin_version = 1;
static uint64_t count;

static void translated(Id id, struct block* block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD, &count, qemu_plugin_tb_n_insns(block));
}
static void called(Id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                   uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number == GETPPID) fprintf(stderr, "%" PRIu64 "\n", count);
}
PUBLIC int qemu_plugin_install(Id id, const void* info, int argc, char** argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
