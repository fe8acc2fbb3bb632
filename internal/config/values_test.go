package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/internal/config"
)

func TestValuesRedactPasswords(t *testing.T) {
	environ := []string{
		"LOCKSTEP_REDIS=redis://u:hunter2@h:1", "LOCKSTEP_PROXY=http://p:hunter2@h:3128", "LOCKSTEP_API_TOKEN=hunter2hunter2hunter2", "LOCKSTEP_HOOK_X_SECRET=hunter2",
	}
	c, err := config.Load(flags(t, "--lease", "20s", "--hosts", "a.example.org"), "", environ)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	shown := map[string]string{}
	for _, v := range c.Values() {
		names = append(names, v.Name)
		shown[v.Name] = fmt.Sprint(v.Value)
		if strings.Contains(shown[v.Name], "hunter2") || v.Value == nil {
			t.Errorf("%s: %v", v.Name, v.Value)
		}
	}
	if shown["lease"] != "20s" || shown["hosts"] != "[a.example.org]" || shown["redis"] != "redis://u:xxxxx@h:1" || shown["limits"] != "[default]" {
		t.Errorf("%v", shown)
	}
	c, err = config.Load(nil, "", []string{"LOCKSTEP_REDIS=redis+sentinel://u:hunter2@h:1?master_name=m&password=hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Values()[0].Value, "redis+sentinel://u:xxxxx@h:1?master_name=m&password=xxxxx"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(all, ^config.Group(0))
	all.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(names, f.Name) {
			t.Errorf("Values lacks %s", f.Name)
		}
	})
}
