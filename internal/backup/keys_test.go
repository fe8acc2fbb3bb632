package backup

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestEveryKeyIsDocumented compares each method of events.Namespace with the table of docs/architecture.md.
func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	text := string(must(os.ReadFile("../../docs/architecture.md"))(t))
	_, table, _ := strings.Cut(text, "## Redis keys")
	table, _, _ = strings.Cut(table, "\n## ")
	var listed []string
	for line := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, quoted := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(first, -1) {
			key := regexp.QuoteMeta(regexp.MustCompile(`\{[^}]*\}|…`).ReplaceAllString(quoted[1], "X"))
			listed = append(listed, "^(lock:X)?"+strings.ReplaceAll(key, "X", ".*")+"$")
		}
	}
	namespace := reflect.ValueOf(namespace)
	for i := range namespace.NumMethod() {
		var args []reflect.Value
		if namespace.Method(i).Type().NumIn() == 1 {
			args = append(args, reflect.ValueOf(path(t, "acme/widgets")))
		}
		key := strings.TrimPrefix(namespace.Method(i).Call(args)[0].String(), prefix)
		if !strings.HasSuffix(key, ":") && !regexp.MustCompile(strings.Join(listed, "|")).MatchString(key) { // a prefix of others
			t.Errorf("docs/architecture.md does not list the key %s", key)
		}
	}
}
