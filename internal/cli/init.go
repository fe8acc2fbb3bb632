package cli

import (
	"cmp"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// none is the answer for deployments without webhooks.
const none = "none"

//go:embed init/lockstep.yaml
var initSettings string

var settingsTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"quote": func(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }, // for YAML
}).Parse(initSettings))

// setup is what lockstep init is given, and what follows from it.
type setup struct {
	Redis, Listen, Forge, NotifyURL, App, Dir string

	url         string // of the receiver, as the forge reaches it
	PrivateHost string // host and port of NotifyURL that notifiers refuse unless the settings list it
}

func newInitCommand(std term.Streams) *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the settings and secrets of a new deployment",
		Long: "Write lockstep.yaml and new secrets that only this user can read, and print the values for the\n" +
			"forge's webhook form. If one of the files exists, it writes nothing. All paths in lockstep.yaml are\n" +
			"relative to its folder: run lockstep there.",
		Example: "  lockstep init\n" +
			"  lockstep init --forge gitea --url https://lockstep.example.org\n" +
			"  lockstep init --forge github --app docs --notify-url https://docs.example.com/hooks/lockstep",
		RunE: func(*cobra.Command, []string) error {
			if err := s.complete(); err != nil {
				return term.UsageError(err)
			}
			if err := s.write(std.Stdout); err != nil {
				return err
			}
			s.printNext(std.Stdout)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.Dir, "dir", ".", "`folder` to write to")
	flags.StringVar(&s.Redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis, without a password")
	flags.StringVar(&s.Listen, "listen", "127.0.0.1:8080", "`address` for HTTP: webhooks, API, dashboard")
	flags.StringVar(&s.Forge, "forge", none, "`kind` of forge that sends webhooks: github, gitlab, gitea, forgejo, "+
		"bitbucket-cloud, bitbucket-dc, azure, standard, or none")
	flags.StringVar(&s.url, "url", "", "`URL` at which the forge reaches this service (default: http and the address)")
	flags.StringVar(&s.App, "app", "docs", "`app` to notify, for --notify-url")
	flags.StringVar(&s.NotifyURL, "notify-url", "", "`URL` of an app that gets notifications (default: none)")
	return cmd
}

// complete checks the flags and sets what depends on them.
func (s *setup) complete() (err error) {
	if s.Dir, err = filepath.Abs(s.Dir); err != nil {
		return err
	}
	s.url = strings.TrimRight(cmp.Or(s.url, "http://"+s.Listen), "/")
	at, _ := url.Parse(s.Redis) // nil for host:port
	_, redisErr := redisx.Parse(s.Redis, nil)
	_, kindErr := forge.ParseKind(s.Forge)
	switch {
	case at != nil && at.User != nil && strings.Contains(at.User.String(), ":"):
		return errors.New("--redis: the URL contains a password, which lockstep.yaml should not have; " +
			"leave it out and set redis-password-file")
	case redisErr != nil:
		return fmt.Errorf("--redis: %w", redisErr)
	case s.Listen == "":
		return errors.New("--listen: want host:port, as in 127.0.0.1:8080")
	case kindErr != nil && s.Forge != none:
		return fmt.Errorf("--forge: %w, or none", kindErr)
	case s.Forge != none && !isServiceURL(s.url):
		return errors.New("--url: want a URL such as https://lockstep.example.org")
	case s.NotifyURL != "" && (!isServiceURL(s.NotifyURL) || strings.Contains(s.NotifyURL, " ") ||
		credential.Covers([]string{s.NotifyURL}, s.NotifyURL) == 0):
		return errors.New("--notify-url: want a URL such as https://docs.example.com/hooks/lockstep")
	}
	if err := watch.CheckApp(s.App); err != nil {
		return fmt.Errorf("--app: %w", err)
	}
	notified, _ := url.Parse(s.NotifyURL) // checked above
	if ip := net.ParseIP(notified.Hostname()); egress.IsLocal(notified.Hostname()) || ip != nil && ip.IsPrivate() {
		s.PrivateHost = notified.Host
	}
	return config.CheckAddress("--listen", s.Listen)
}

func isServiceURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil &&
		u.RawQuery == "" && u.Fragment == ""
}

// printNext prints the forge's form for a webhook, and what to do next.
func (s *setup) printNext(w io.Writer) {
	if s.Forge != none {
		form, rows := forge.FormOf(forge.Kind(s.Forge)), ""
		for _, row := range [][2]string{
			{cmp.Or(form.URL, "URL"), s.url + "/hooks/" + s.Forge}, {"Content type", form.ContentType},
			{form.Secret, "the text in " + filepath.Join(s.hook(), "secret")}, {"Events", form.Events},
		} {
			if row[1] != "" {
				rows += fmt.Sprintf("  %s\t%s\n", row[0], row[1])
			}
		}
		fmt.Fprintf(w, "\nWebhook, at %s:\n%s", form.Where, term.Align(rows))
	}
	fmt.Fprintf(w, "\nNext, in %s:\n  lockstep serve\n  lockstep watch add URL --app %s", s.Dir, s.App)
	if s.NotifyURL != "" {
		fmt.Fprintf(w, " --notify-url %s --notify-secret %s", s.NotifyURL, s.App)
	}
	if s.Forge == none {
		fmt.Fprint(w, " --poll 1m\nWithout webhooks, a push is noticed by the next poll, each hour unless --poll says otherwise.")
	}
	fmt.Fprintln(w, "\nSee docs/tutorial.md.")
}

// setupFile is a file that init writes.
type setupFile struct {
	name, content string
	perm          os.FileMode
	wanted        bool
}

// hook returns the folder of the forge's webhooks, as in the settings.
func (s *setup) hook() string { return filepath.Join("hooks", s.Forge) }

// files returns what to write, lockstep.yaml last.
func (s *setup) files() ([]setupFile, error) {
	secret := func() []byte {
		b := make([]byte, 32)
		_, _ = rand.Read(b) // never fails
		return b
	}
	var settings strings.Builder
	if err := settingsTemplate.Execute(&settings, s); err != nil {
		return nil, err
	}
	hook, credential := s.hook(), filepath.Join("credentials", s.App)
	return slices.DeleteFunc([]setupFile{
		{"api-token", hex.EncodeToString(secret()) + "\n", 0o600, true},
		{filepath.Join(hook, "forge"), s.Forge + "\n", 0o600, s.Forge != none},
		{filepath.Join(hook, "secret"), hex.EncodeToString(secret()) + "\n", 0o600, s.Forge != none},
		{filepath.Join(credential, "signingSecret"), "whsec_" + base64.StdEncoding.EncodeToString(secret()) + "\n", 0o600,
			s.NotifyURL != ""},
		{filepath.Join(credential, "urls"), s.NotifyURL + "\n", 0o600, s.NotifyURL != ""},
		{config.DefaultFile, settings.String(), 0o644, true},
	}, func(f setupFile) bool { return !f.wanted }), nil
}

// write writes the files. If one of them exists, it writes nothing and returns an error.
func (s *setup) write(w io.Writer) error {
	files, err := s.files()
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(s.Dir, f.name)
		_, err := os.Lstat(path)
		if err == nil {
			return fmt.Errorf("%s exists; nothing was written: edit it, remove it, or choose another folder with --dir", path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	var names []string
	for _, f := range files {
		path := filepath.Join(s.Dir, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.content), f.perm); err != nil {
			return err
		}
		names = append(names, f.name)
	}
	fmt.Fprintf(w, "written in %s: %s\n", s.Dir, strings.Join(names, ", "))
	return nil
}
