/* Native twin of huge_pages.py. Nothing here decides. The interpreter is held whenever it asks for an arena. */

#include "_native.h"
#if defined(__linux__) && !defined(Py_GIL_DISABLED)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t)2 * 1024 * 1024)
#define MOST_SHARES 32
#define MOST_MAPPINGS 4096
#define SMALL_BYTES 4096 /* where pages have another size, so have huge ones */
#define SMALL_PAGES (HUGE_BYTES / SMALL_BYTES)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; before, and where it is not known, the call fails */
#endif

/* One huge page, or as many small ones where the system has none, which arenas of the interpreter share. */
typedef struct {
    char *start;
    uint32_t used; /* a bit for each share */
} Page;

static PyObjectArenaAllocator before; /* the allocator of the arenas that were made earlier */
static Page *pages; /* all of them, in no order */
static size_t page_count, page_room;
static size_t share_bytes; /* what the interpreter asks for; 0: it has not asked yet */

static char *
map_page(void)
{
    char *mapped = mmap(NULL, 2 * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *start;
    size_t ahead;

    if (mapped == MAP_FAILED) {
        return NULL;
    }
    ahead = (HUGE_BYTES - (uintptr_t)mapped % HUGE_BYTES) % HUGE_BYTES;
    start = mapped + ahead;
    if (ahead > 0) {
        munmap(mapped, ahead);
    }
    munmap(start + HUGE_BYTES, HUGE_BYTES - ahead);
    madvise(start, HUGE_BYTES, MADV_HUGEPAGE); /* without it the pages are small */
    return start;
}

static void *
take_share(Page *page, size_t number)
{
    page->used |= (uint32_t)1 << number;
    return page->start + number * share_bytes;
}

static void *
allocate(void *context, size_t size)
{
    size_t at, number;

    if (share_bytes == 0 && size > 0 && HUGE_BYTES % size == 0 && HUGE_BYTES / size <= MOST_SHARES) {
        share_bytes = size;
    }
    if (size != share_bytes) {
        return before.alloc(before.ctx, size);
    }
    for (at = 0; at < page_count; at++) {
        for (number = 0; number < HUGE_BYTES / size; number++) {
            if (!(pages[at].used & (uint32_t)1 << number)) {
                return take_share(&pages[at], number);
            }
        }
    }
    if (page_count == page_room) {
        size_t room = page_room ? 2 * page_room : 64;
        Page *larger = realloc(pages, room * sizeof(Page));
        if (larger == NULL) {
            return NULL;
        }
        pages = larger;
        page_room = room;
    }
    pages[page_count].start = map_page();
    pages[page_count].used = 0;
    return pages[page_count].start == NULL ? NULL : take_share(&pages[page_count++], 0);
}

static void
release(void *context, void *arena, size_t size)
{
    size_t at;

    for (at = 0; at < page_count; at++) {
        char *start = pages[at].start;
        if ((char *)arena >= start && (char *)arena < start + HUGE_BYTES) {
            pages[at].used &= ~((uint32_t)1 << ((size_t)((char *)arena - start) / share_bytes));
            if (pages[at].used == 0) {
                munmap(start, HUGE_BYTES);
                pages[at] = pages[--page_count];
            } else { /* its memory is given back, though the rest is in small pages then */
                madvise(arena, size, MADV_DONTNEED);
            }
            return;
        }
    }
    before.free(before.ctx, arena, size);
}

PyObject *
use_huge_pages(PyObject *module, PyObject *ignored)
{
    PyObjectArenaAllocator now;

    PyObject_GetArenaAllocator(&now);
    if (now.alloc != allocate) {
        before = now;
        now.ctx = NULL;
        now.alloc = allocate;
        now.free = release;
        PyObject_SetArenaAllocator(&now);
    }
    Py_RETURN_TRUE;
}

typedef struct {
    uintptr_t start, end;
} Mapping;

/* Whether programs may have huge pages: MADV_COLLAPSE does not ask. */
static int
may_have_huge_pages(void)
{
    char said[64];
    size_t length = 0;
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");

    if (file != NULL) {
        length = fread(said, 1, sizeof(said) - 1, file);
        fclose(file);
    }
    said[length] = 0;
    return length > 0 && strstr(said, "[never]") == NULL;
}

/* The mappings of the heap and of memory without a name that can be written. */
static size_t
find_mappings(Mapping *found)
{
    char *line = NULL, rights[5], name[8];
    unsigned long start, end, inode;
    size_t room = 0, count = 0;
    FILE *file = fopen("/proc/self/maps", "re");

    while (file != NULL && count < MOST_MAPPINGS && getline(&line, &room, file) >= 0) {
        int fields = sscanf(line, "%lx-%lx %4s %*x %*s %lu %7s", &start, &end, rights, &inode, name);
        if (fields >= 4 && inode == 0 && strcmp(rights, "rw-p") == 0 &&
            (fields == 4 || strcmp(name, "[heap]") == 0)) {
            found[count].start = start;
            found[count++].end = end;
        }
    }
    free(line);
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

/* Whether nearly all of a huge page's memory is in use, so that it takes little more as one. */
static int
is_used(char *start)
{
    unsigned char there[SMALL_PAGES];
    size_t used = 0, at;

    if (mincore(start, HUGE_BYTES, there) != 0) {
        return 0;
    }
    for (at = 0; at < SMALL_PAGES; at++) {
        used += there[at] & 1;
    }
    return used >= SMALL_PAGES - SMALL_PAGES / 8;
}

static size_t
collapse(void)
{
    size_t collapsed = 0, count, at;
    Mapping *found;

    if (sysconf(_SC_PAGESIZE) != SMALL_BYTES || !may_have_huge_pages()) {
        return 0;
    }
    found = malloc(MOST_MAPPINGS * sizeof(Mapping));
    if (found == NULL) {
        return 0;
    }
    count = find_mappings(found);
    for (at = 0; at < count; at++) {
        uintptr_t start = (found[at].start + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
        for (; start + HUGE_BYTES <= found[at].end; start += HUGE_BYTES) {
            if (is_used((char *)start) && madvise((char *)start, HUGE_BYTES, MADV_COLLAPSE) == 0) {
                collapsed += HUGE_BYTES;
            }
        }
    }
    free(found);
    return collapsed;
}

PyObject *
collapse_pages(PyObject *module, PyObject *ignored)
{
    size_t collapsed;

    Py_BEGIN_ALLOW_THREADS
    collapsed = collapse();
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(collapsed);
}

#else

PyObject *
use_huge_pages(PyObject *module, PyObject *ignored)
{
    Py_RETURN_FALSE;
}

PyObject *
collapse_pages(PyObject *module, PyObject *ignored)
{
    return PyLong_FromLong(0);
}

#endif
