// The key of whoever is signed in. It lies in this tab's session storage only: it goes when the tab is closed,
// and no other tab and no cookie has it.

const KEY = "trunkline.key";
const RANKS = { viewer: 1, operator: 2, admin: 3 };

export const session = {
  about: null, // what /admin/self said

  get key() {
    try {
      return sessionStorage.getItem(KEY);
    } catch {
      return this.inMemory ?? null;
    }
  },

  signIn(key, about) {
    this.about = about;
    try {
      sessionStorage.setItem(KEY, key);
    } catch {
      this.inMemory = key; // storage is turned off
    }
  },

  signOut() {
    this.about = null;
    this.inMemory = null;
    try {
      sessionStorage.removeItem(KEY);
    } catch {
      // There is nothing to remove.
    }
  },

  get role() {
    return this.about?.key?.role ?? null;
  },

  may(role) {
    return (RANKS[this.role] ?? 0) >= RANKS[role];
  },
};
