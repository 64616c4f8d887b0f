/* What the driver would do and a task with a share may not ask for, as lists. */
#include "base/cleanup.h"
#include "gpu/warden-int.h"

/* Objects that name memory by where it lies, or keep another's beyond its own end; and events of
   the kernel's own users. */
bool vg_wrefused_class(uint32_t class_id) {
    static const uint16_t classes[] = {
        VG_RM_CLASS_EVENT_CALLBACK,
        VG_RM_CLASS_EVENT_CALLBACK_EX,
        0x3f, /* memory of the card, for the driver's own use */
        0x42, /* … of another machine's */
        0x76, /* … that the console has */
        0x81, /* … by lists of pages */
        0x82,
        0x83,
        0xb1, /* … without an address */
        0xc2, /* … by its place */
        0xe0, /* exported */
        0xf3, /* for other cards … */
        0xf8, /* … of a fabric */
        0xf9,
        0xfb,
        0xfd,
        0xfe, /* mapped by semaphores */
    };
    for (size_t i = 0; i < VG_COUNT(classes); i++)
        if (classes[i] == class_id)
            return true;
    return false;
}

/* What makes a descriptor of an object, or an object of one: it keeps the object's memory. MPS's
   clients may have it from the server so. */
static bool is_export(uint32_t command) {
    return command == 0x3d05 || command == 0x3d06 || (command >= 0x3d0a && command <= 0x3d0c);
}

/* What would give a task more of the card's time than its share. */
static bool is_privilege(uint32_t command) {
    static const uint32_t commands[] = {
        0x0080170f, /* properties of a channel */
        0x00801711, /* a run list is stopped … */
        0x00801712, /* … and started */
        0x20801115, /* how a run list is scheduled */
        0xa06c0107, /* how often a group gets its turn */
        0xa06c0110, /* a group before all others */
        0xa06c0202, /* a slice, by the driver's own way */
        0xa06f0109, /* how often a channel gets its turn */
        0xa06f0111, /* a run list is begun anew */
    };
    for (size_t i = 0; i < VG_COUNT(commands); i++)
        if (commands[i] == command)
            return true;
    return false;
}

bool vg_wrefused_control(uint32_t command, bool mps) {
    return is_privilege(command) || (!mps && is_export(command));
}
