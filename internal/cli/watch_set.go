package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

func newWatchSetCommand(std term.Streams) *cobra.Command {
	var flags watchFlags
	var app, ref string
	var reset []string
	var out term.Output
	var unchecked bool
	cmd := &cobra.Command{
		Use:   "set owner/name",
		Short: "Change options of a watch",
		Long: "Change the named options of an app's watch of the remote's default branch, or of --ref. The others\n" +
			"stay as they are. A repeatable option replaces the whole list. --reset gives an option its default\n" +
			"back. The differences are printed. --notify-url, also with the same URL, resumes notifications that\n" +
			"were silenced.",
		Example: "  lockstep watch set acme/widgets --app docs --poll 10m --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch set acme/widgets --app ci --ref 'refs/tags/v*' --reset poll --reset credential --redis " +
			"redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := watchKey(args[0], app, ref)
			if err != nil {
				return term.UsageError(err)
			}
			names, err := flags.named(cmd.Flags(), reset)
			if err != nil {
				return term.UsageError(err)
			}
			if err := flags.set(new(watch.Watch), names...); err != nil {
				return term.UsageError(err)
			}
			return onRepo(cmd, std, watchTimeout, key.Repo, func(ctx context.Context, d deployment) error {
				registry := watch.NewRegistry(d.redis, d.cfg.Namespace())
				before, after, err := registry.Change(ctx, key, func(w *watch.Watch) error { return flags.set(w, names...) })
				if errors.Is(err, watch.ErrNotWatched) {
					return notWatched(ctx, registry, key.Repo, key.App)
				}
				if err != nil {
					return err
				}
				done := watchSet{"changed", after, differences(before, after)}
				if len(done.Changes) == 0 {
					done.Outcome = "unchanged"
				}
				if err := out.Show(std, done, done.Table); err != nil {
					return err
				}
				if !unchecked && (before.URL != after.URL || before.Credential != after.Credential) {
					warnOfRemote(ctx, std, d.cfg, after)
				}
				return nil
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&app, "app", "", "`app` of the watch; required")
	cmd.Flags().StringVar(&ref, "ref", "",
		"watched `branch, ref, commit or pattern` (default: the remote's default branch)")
	cmd.Flags().StringVar(&flags.url, "url", "", "`URL` of the same remote, such as over SSH instead of HTTPS")
	flags.addOptions(cmd.Flags())
	cmd.Flags().StringArrayVar(&reset, "reset", nil, "`option` to reset to its default, such as poll; repeatable")
	cmd.Flags().BoolVar(&unchecked, "no-check", false, "do not check the remote after a change of its URL or credential")
	out.Add(cmd)
	return cmd
}

// named returns the options to set: those whose flags are given, and those to reset, whose flags have their defaults.
func (f *watchFlags) named(flags *pflag.FlagSet, reset []string) ([]string, error) {
	var names []string
	options := slices.Sorted(maps.Keys(f.options()))
	for _, name := range options {
		switch given := flags.Changed(name); {
		case given && slices.Contains(reset, name):
			return nil, fmt.Errorf("use either --%s or --reset %s", name, name)
		case given:
			names = append(names, name)
		}
	}
	resettable := slices.DeleteFunc(options, func(name string) bool { return name == "url" })
	for _, name := range reset {
		if !slices.Contains(resettable, name) {
			return nil, fmt.Errorf("--reset %q: want one of %s", name, strings.Join(resettable, ", "))
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errors.New("name the options to change, or --reset OPTION")
	}
	return names, nil
}

// watchSet is the output of lockstep watch set.
type watchSet struct {
	Outcome string        `json:"outcome"` // "changed" or "unchanged"
	Watch   watch.Watch   `json:"watch"`
	Changes []watchChange `json:"changes"`
}

func (s watchSet) Table(w io.Writer) {
	watchRow(w, s.Outcome, s.Watch)
	for _, c := range s.Changes {
		fmt.Fprintf(w, "%s\t%s\t-> %s\n", c.Field, c.text(c.From), c.text(c.To))
	}
}

// watchChange is a field of a watch's document that two watches have with different values; null for the default.
type watchChange struct {
	Field string          `json:"field"`
	From  json.RawMessage `json:"from"`
	To    json.RawMessage `json:"to"`
}

func (watchChange) text(value json.RawMessage) string {
	if value == nil {
		return "(default)"
	}
	var text string
	if json.Unmarshal(value, &text) != nil {
		text = string(value)
	}
	return term.Printable(text)
}

// differences returns the fields in which two watches differ.
func differences(before, after watch.Watch) []watchChange {
	from, to := fieldsOf(before), fieldsOf(after)
	changes := []watchChange{}
	for _, field := range slices.Sorted(maps.Keys(from)) {
		if string(from[field]) != string(to[field]) {
			changes = append(changes, watchChange{field, from[field], to[field]})
		}
	}
	for _, field := range slices.Sorted(maps.Keys(to)) {
		if _, ok := from[field]; !ok {
			changes = append(changes, watchChange{field, nil, to[field]})
		}
	}
	slices.SortFunc(changes, func(a, b watchChange) int { return cmp.Compare(a.Field, b.Field) })
	return changes
}

func fieldsOf(w watch.Watch) (fields map[string]json.RawMessage) {
	document, err := json.Marshal(w)
	if err != nil {
		panic(err) // impossible: the registry stores these documents
	}
	if err := json.Unmarshal(document, &fields); err != nil {
		panic(err)
	}
	return fields
}

// alreadyWatched is the error for adding a watch that exists with other options.
func alreadyWatched(existing, wanted watch.Watch) error {
	existing.Silenced, existing.Auto, existing.Repo = "", false, wanted.Repo
	var differing []string
	for _, change := range differences(existing, wanted) {
		differing = append(differing, fmt.Sprintf("%s: %s", change.Field, change.text(change.From)))
	}
	ref := ""
	if !existing.Ref.IsDefault() {
		ref = " --ref '" + existing.Ref.String() + "'"
	}
	return fmt.Errorf("%s watches %s %s already, with other options (%s); change them with lockstep watch set "+
		"%s --app %s%s",
		existing.App, existing.Repo, refText(existing.Ref), strings.Join(differing, ", "), existing.Repo, existing.App, ref)
}
