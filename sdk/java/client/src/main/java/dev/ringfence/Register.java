package dev.ringfence;

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * Who is responsible for each lease of a client: one handle, or what releases it. One lock makes every change of that a single step.
 *
 * <pre>
 *     acquired ──▶ a handle ── an adoption is confirmed ──▶ the other handle
 *                   │    └──── left to its id ────────────▶ nobody here
 *                   └───────── released, or dropped ──────▶ its releases, until the last has ended
 * </pre>
 *
 * <p>Until an adoption is confirmed, the lease stays with the handle that has it. A release comes before adoptions that are under way:
 * they fail, as the DELETE may follow their renewal. A handle that is dropped meanwhile waits for them, and is released if none
 * succeeds.
 */
final class Register {
  private static final class Entry {
    Held handle;
    /** How many are under way, with those that hold it until a time. */
    int releases;

    final Set<Adoption> adoptions = new HashSet<>();
  }

  private final Map<String, Entry> entries = new HashMap<>();

  /** A lease was acquired. */
  synchronized void add(Held held) {
    entry(held.leaseId).handle = held;
  }

  /** The handles that have their leases, also one that was lost by its holder's clock alone: the cluster may keep that for long. */
  synchronized List<Held> handles() {
    return entries.values().stream().map(entry -> entry.handle).filter(Objects::nonNull).toList();
  }

  /** A release begins. */
  synchronized void opens(String leaseId) {
    Entry entry = entry(leaseId);
    entry.releases++;
    entry.adoptions.forEach(adoption -> adoption.isLate = true);
  }

  /** A release has ended. */
  synchronized void closes(String leaseId) {
    entry(leaseId).releases--;
    tidy(leaseId);
  }

  /** A handle is to be released. If it still has its lease, a release begins. Returns whether it does. */
  synchronized boolean releases(Held held) {
    if (!has(held)) {
      return false;
    }
    opens(held.leaseId);
    entry(held.leaseId).handle = null;
    return true;
  }

  /** The same, for a handle that nobody has any more: an adoption comes first. */
  synchronized boolean drops(Held held) {
    held.isDropped = true;
    return has(held) && entry(held.leaseId).adoptions.isEmpty() && releases(held);
  }

  /** A handle leaves its lease to whoever has the id. Returns whether it had it. */
  synchronized boolean leaves(Held held) {
    boolean hadIt = has(held);
    if (hadIt) {
      entry(held.leaseId).handle = null;
      tidy(held.leaseId);
    }
    return hadIt;
  }

  /** An adoption begins. */
  synchronized Adoption adopts(String leaseId) {
    Adoption adoption = new Adoption(leaseId);
    Entry entry = entry(leaseId);
    adoption.isLate = entry.releases > 0;
    entry.adoptions.add(adoption);
    return adoption;
  }

  private boolean has(Held held) {
    Entry entry = entries.get(held.leaseId);
    return entry != null && entry.handle == held;
  }

  private Entry entry(String leaseId) {
    return entries.computeIfAbsent(leaseId, id -> new Entry());
  }

  private void tidy(String leaseId) {
    Entry entry = entries.get(leaseId);
    if (entry.handle == null && entry.releases == 0 && entry.adoptions.isEmpty()) {
      entries.remove(leaseId);
    }
  }

  /** A call that adopts a lease. */
  final class Adoption {
    private final String leaseId;
    /** Whether the lease is being released, or was since this began. */
    private boolean isLate;

    private Adoption(String leaseId) {
      this.leaseId = leaseId;
    }

    /** Fails if it comes too late. */
    void check() {
      synchronized (Register.this) {
        if (isLate) {
          throw new LostException(LossReason.RELEASED);
        }
      }
    }

    /** It is confirmed: the lease goes over to this handle. Returns the one that had it; {@code null} if none did. */
    Held confirm(Held held) {
      synchronized (Register.this) {
        check();
        Held before = entry(leaseId).handle;
        entry(leaseId).handle = held;
        return before;
      }
    }

    /** It has ended, however. Returns the dropped handle that waited for it, if it still has the lease; else {@code null}. */
    Held end() {
      synchronized (Register.this) {
        Entry entry = entry(leaseId);
        entry.adoptions.remove(this);
        tidy(leaseId);
        return entry.handle != null && entry.handle.isDropped ? entry.handle : null;
      }
    }
  }
}
