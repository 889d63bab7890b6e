/*
 * Lets user-mode Linux run on CPUs with a large register state (LD_PRELOAD for linux.uml).
 *
 * Why: user-mode Linux moves its processes' floating point registers with PTRACE_GETREGSET and PTRACE_SETREGSET of
 * NT_X86_XSTATE, through a buffer of fixed size: 2696 bytes in 6.1. On a CPU with AMX the host's area is 11008 bytes.
 * Reading cuts off quietly. Writing fails, because the host wants at least its whole area (EFAULT from
 * xstateregs_set, arch/x86/kernel/fpu/regset.c, 6.x), and the guest panics at its first process with
 * "ptrace set fp regs failed, errno = 14".
 *
 * What: writing reads the host's whole area first, lays the guest's bytes over its beginning, and writes the whole
 * area back. The part that the guest does not know keeps the host's values; the guest's copy of the header (XSTATE_BV,
 * in the first 576 bytes) decides, as always, which components are in their initial state. Where the guest's buffer is
 * large enough, nothing is changed.
 *
 * Limits: one static buffer, so one tracer thread, which is what user-mode Linux has. Tile registers of two guest
 * threads in one address space would be mixed up; nothing in a guest can use them without arch_prctl permission.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

/* XSAVE areas of today's CPUs end at about 11 KiB; 64-byte alignment is what XSAVE itself wants. */
static char host_area[64 * 1024] __attribute__((aligned(64)));

static long kernel_ptrace(long request, pid_t pid, void *addr, void *data)
{
	return syscall(SYS_ptrace, request, pid, addr, data);
}

static long read_xstate(pid_t pid, struct iovec *guest)
{
	struct iovec host = {host_area, sizeof host_area};

	if (kernel_ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &host) < 0)
		return -1;
	if (guest->iov_len > host.iov_len)
		guest->iov_len = host.iov_len;
	memcpy(guest->iov_base, host_area, guest->iov_len);
	return 0;
}

static long write_xstate(pid_t pid, const struct iovec *guest)
{
	struct iovec host = {host_area, sizeof host_area};

	if (kernel_ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &host) < 0)
		return -1;
	memcpy(host_area, guest->iov_base, guest->iov_len < host.iov_len ? guest->iov_len : host.iov_len);
	return kernel_ptrace(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &host);
}

/* Same contract as the C library's: PEEK requests return the word, everything else the status. */
long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *addr = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	switch ((long)request) {
	case PTRACE_PEEKTEXT:
	case PTRACE_PEEKDATA:
	case PTRACE_PEEKUSER: {
		long word = 0;
		if (kernel_ptrace(request, pid, addr, &word) < 0)
			return -1;
		errno = 0;
		return word;
	}
	case PTRACE_GETREGSET:
		if ((long)addr == NT_X86_XSTATE)
			return read_xstate(pid, data);
		break;
	case PTRACE_SETREGSET:
		if ((long)addr == NT_X86_XSTATE)
			return write_xstate(pid, data);
		break;
	}
	return kernel_ptrace(request, pid, addr, data);
}
