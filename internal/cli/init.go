package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// none is the answer for deployments without webhooks, and for those without a file that runs the service.
const none = "none"

// setup is what lockstep init is given.
type setup struct {
	Redis, Listen, Forge, NotifyURL, App, Service string

	dir, binary string
	url         string // of the receiver, as the forge reaches it
}

func newInitCommand(std term.Streams) *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the settings and secrets of a new deployment",
		Long: "Write lockstep.yaml, new secrets that only this user can read and, with --service, a file that runs the service, and\n" +
			"print the values for the forge's webhook form. If one of the files exists, it writes nothing. All paths in\n" +
			"lockstep.yaml are relative to its folder: run lockstep there.",
		Example: "  lockstep init\n" +
			"  lockstep init --forge gitea --url https://lockstep.example.org --service systemd\n" +
			"  lockstep init --forge github --app docs --notify-url https://docs.example.com/hooks/lockstep",
		RunE: func(*cobra.Command, []string) error {
			if err := s.complete(); err != nil {
				return term.UsageError(err)
			}
			files, err := s.files()
			if err != nil {
				return term.UsageError(err)
			}
			if err := writeFiles(std.Stdout, s.dir, files); err != nil {
				return err
			}
			s.printNext(std.Stdout)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.dir, "dir", ".", "`folder` to write to")
	flags.StringVar(&s.Redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis, without a password")
	flags.StringVar(&s.Listen, "listen", "127.0.0.1:8080", "`address` for HTTP: webhooks, API, dashboard")
	flags.StringVar(&s.Forge, "forge", none, "`kind` of forge that sends webhooks: github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, azure, standard, or none")
	flags.StringVar(&s.url, "url", "", "`URL` at which the forge reaches this service (default: http and the address)")
	flags.StringVar(&s.App, "app", "docs", "`app` to notify, for --notify-url")
	flags.StringVar(&s.NotifyURL, "notify-url", "", "`URL` of an app that gets notifications (default: none)")
	flags.StringVar(&s.Service, "service", none, "`file` that runs the service: compose, systemd or none")
	return cmd
}

// complete checks the flags and sets what depends on them.
func (s *setup) complete() (err error) {
	s.binary, _ = os.Executable() // for the unit
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	s.url = strings.TrimRight(cmp.Or(s.url, "http://"+s.Listen), "/")
	_, redisErr := redisx.Parse(s.Redis, "")
	_, kindErr := forge.ParseKind(s.Forge)
	switch {
	case hasPassword(s.Redis):
		return errors.New("--redis: the URL contains a password, which lockstep.yaml should not have; leave it out and set redis-password-file")
	case redisErr != nil:
		return fmt.Errorf("--redis: %w", redisErr)
	case s.Listen == "":
		return errors.New("--listen: want host:port, as in 127.0.0.1:8080")
	case kindErr != nil && s.Forge != none:
		return fmt.Errorf("--forge: %w, or none", kindErr)
	case s.Forge != none && !isServiceURL(s.url):
		return errors.New("--url: want a URL such as https://lockstep.example.org")
	case s.NotifyURL != "" && (!isServiceURL(s.NotifyURL) || strings.Contains(s.NotifyURL, " ") || credential.Covers([]string{s.NotifyURL}, s.NotifyURL) == 0):
		return errors.New("--notify-url: want a URL such as https://docs.example.com/hooks/lockstep")
	case s.Service != "compose" && s.Service != "systemd" && s.Service != none:
		return fmt.Errorf("--service: %q: want compose, systemd or none", s.Service)
	}
	if err := watch.CheckApp(s.App); err != nil {
		return fmt.Errorf("--app: %w", err)
	}
	return config.CheckAddress("--listen", s.Listen)
}

func hasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	_, has := u.User.Password()
	return has
}

func isServiceURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// printNext prints the webhook's form and what to do next.
func (s *setup) printNext(w io.Writer) {
	if s.Forge != none {
		printWebhook(w, forge.Kind(s.Forge), s.url+"/hooks/"+s.Forge, filepath.Join("hooks", s.Forge, "secret"))
	}
	run, start := "lockstep", "lockstep serve"
	switch s.Service {
	case "compose":
		run, start = "docker compose exec lockstep /lockstep", "docker compose up --detach"
	case "systemd":
		start = "sudo cp lockstep.service /etc/systemd/system/ && sudo systemctl enable --now lockstep"
	}
	fmt.Fprintf(w, "\nNext, in %s:\n  %s\n  %s watch add URL --app %s", s.dir, start, run, s.App)
	if s.NotifyURL != "" {
		fmt.Fprintf(w, " --notify-url %s --notify-secret %s", s.NotifyURL, s.App)
	}
	fmt.Fprintln(w, "\nSee docs/tutorial.md.")
}

// printWebhook prints the forge's form for a webhook.
func printWebhook(w io.Writer, kind forge.Kind, to, secret string) {
	form := forge.FormOf(kind)
	rows := fmt.Sprintf("  %s\t%s\n", cmp.Or(form.URL, "URL"), to)
	if form.ContentType != "" {
		rows += fmt.Sprintf("  Content type\t%s\n", form.ContentType)
	}
	rows += fmt.Sprintf("  %s\tthe text in %s\n", form.Secret, secret)
	if form.Events != "" {
		rows += fmt.Sprintf("  Events\t%s\n", form.Events)
	}
	fmt.Fprintf(w, "\nWebhook, at %s:\n%s", form.Where, term.Align(rows))
}
