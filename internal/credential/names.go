package credential

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/events"
)

// Check returns an error if dir, which may be empty, is not a directory, if a credential has invalid URL prefixes, or if two
// credentials would read the same variable: their names differ only in case, "-", "." and "_", or one variable that is set
// belongs to both. It checks the credentials in dir and those named. It reads no secrets.
func Check(dir string, getenv func(string) string, named ...string) error {
	names := slices.DeleteFunc(slices.Clone(named), func(name string) bool { return name == "" })
	if dir != "" {
		info, err := os.Stat(dir)
		switch {
		case err != nil:
			return fmt.Errorf("credentials: %w", err)
		case !info.IsDir():
			return fmt.Errorf("credentials: %s is not a directory; want one with a directory for each credential", dir)
		}
		found, err := namesIn(dir)
		if err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	readers := map[string]string{} // by variable
	store := NewStore(dir, getenv)
	for _, name := range slices.Compact(names) {
		urls, _, _ := store.readFile(name, "urls") // an error is that of the first use
		if err := store.checkURLs(name, cmp.Or(urls, getenv(variable(name, "urls")))); err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
		for file := range files {
			key := variable(name, file)
			other, taken := readers[key]
			if taken && (fold(other) == fold(name) || getenv(key) != "") {
				return fmt.Errorf("credentials: %w", shared(other, name, key))
			}
			readers[key] = name
		}
	}
	return nil
}

// shared is the error about two credentials that would read the same variable.
func shared(one, other, key string) error {
	if fold(one) == fold(other) {
		key = variablePrefix + fold(one) + "_…"
	}
	return fmt.Errorf("%q and %q would share the secrets in %s; rename one of them", one, other, key)
}

// checkVariables refuses the variables of a credential if they belong to one in the directory with another name.
func (s *Store) checkVariables(name string) error {
	if s.dir == "" {
		return nil
	}
	names, err := namesIn(s.dir)
	if err != nil {
		return events.Errorf(events.Retryable, events.ClassConfig, "credential %s: %w", name, err)
	}
	for _, other := range names {
		if other != name && fold(other) == fold(name) {
			return events.Errorf(events.Permanent, events.ClassConfig, "credentials: %w", shared(name, other, ""))
		}
	}
	return nil
}

// namesIn returns the names of the credentials in a directory.
func namesIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if !namePattern.MatchString(entry.Name()) {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, entry.Name())); err == nil && info.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, err
}

const variablePrefix = "LOCKSTEP_CREDENTIAL_"

// fold returns a name as it appears in variables.
func fold(name string) string {
	return strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
}

func variable(name, file string) string { return variablePrefix + fold(name) + "_" + files[file] }
