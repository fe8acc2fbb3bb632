package config

import (
	"regexp"
	"slices"
	"strings"
)

// UnknownVariable is an environment variable that begins like one of Lockstep's but sets nothing.
type UnknownVariable struct {
	Name    string
	Nearest string // name of a similar variable; empty if none is similar
}

func (u UnknownVariable) String() string {
	if u.Nearest == "" {
		return "unknown variable " + u.Name + "; see docs/configuration.md"
	}
	return "unknown variable " + u.Name + ", did you mean " + u.Nearest + "?"
}

// serviceVariable matches variables that Kubernetes and Docker set in each container for a service called lockstep or
// lockstep-NAME. The suffix PORT alone is theirs only if the value is a URL.
var serviceVariable = regexp.MustCompile(
	`(^|_)(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=|(^|_)PORT=[a-z]+://`)

// otherVariables have a meaning, but set no setting: API_TOKEN, those that exec sets for its command, and
// those of the tests.
var otherVariables = []string{"API_TOKEN", "TREE", "COMMIT", "REF", "NAME", "WORKSPACE", "TEST", "SEED", "SOAK", "SOAK_TIME",
	"SCREENSHOTS"}

// otherPrefixes start variables with names of users' choice.
var otherPrefixes = []string{"CREDENTIAL_", "HOOK_", "TEST_"}

// unknownVariables returns the variables with the prefix of settings and a value that have no meaning, by name.
func unknownVariables(environ []string) (unknown []UnknownVariable) {
	for _, pair := range environ {
		pair, ok := strings.CutPrefix(pair, EnvPrefix)
		name, value, _ := strings.Cut(pair, "=")
		if !ok || value == "" || slices.Contains(otherVariables, name) || serviceVariable.MatchString(pair) {
			continue
		}
		if slices.ContainsFunc(otherPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		if _, known := find(settingName(name)); !known {
			unknown = append(unknown, UnknownVariable{EnvPrefix + name, nearest(name)})
		}
	}
	slices.SortFunc(unknown, func(a, b UnknownVariable) int { return strings.Compare(a.Name, b.Name) })
	return unknown
}

// settingName returns the name of the setting that a variable without its prefix would set.
func settingName(variable string) string {
	return strings.ToLower(strings.ReplaceAll(variable, "_", "-"))
}

// nearest returns the variable that differs least from an unknown one, in at most a third of its letters, or "".
func nearest(variable string) (found string) {
	least := len(variable)/3 + 1
	consider := func(known string) {
		if d := distance(variable, known); d < least {
			found, least = EnvPrefix+known, d
		}
	}
	for _, s := range settings {
		consider(strings.TrimPrefix(VariableName(s.name), EnvPrefix))
	}
	consider("API_TOKEN")
	return found
}

// distance returns the Levenshtein distance of two texts, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
