/* Native twin of huge_pages.py. Nothing here decides. The interpreter is held whenever it asks for an arena. */

#include "_native.h"
#if defined(__linux__) && !defined(Py_GIL_DISABLED)
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 * 1024 * 1024)
#define MOST_SHARES 32

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

#else

PyObject *
use_huge_pages(PyObject *module, PyObject *ignored)
{
    Py_RETURN_FALSE;
}

#endif
