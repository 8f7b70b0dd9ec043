#!/bin/sh
# Compares a pull or merge request with what it goes into, and keeps one comment on it that says what changes on which member.
# In GitHub Actions and GitLab CI it knows where it is; what is set to override that is named below. Arguments go to
# fleetwright diff. Needs git, curl and jq. Writes plan.md, plan.json and plan.html.
#
#   BASE, HEAD        the revisions; HEAD may be left out
#   COMMENTS_URL      the URL of the comments of the request, in the API
#   COMMENT_METHOD    how a comment is changed: PATCH on GitHub, PUT on GitLab
#   COMMENT_URL       the URL of one comment without its number, where that is another one
#   AUTH_HEADER       the header that authorizes: "Authorization: Bearer …" or "PRIVATE-TOKEN: …"
#   FLEETWRIGHT       the program, fleetwright if left out
set -eu

if [ -n "${GITHUB_EVENT_PATH:-}" ]; then
	number=$(jq -r '.pull_request.number // empty' "$GITHUB_EVENT_PATH")
	BASE=${BASE:-origin/$GITHUB_BASE_REF}
	if [ -n "$number" ]; then
		COMMENTS_URL=${COMMENTS_URL:-$GITHUB_API_URL/repos/$GITHUB_REPOSITORY/issues/$number/comments}
	fi
	COMMENT_URL=${COMMENT_URL:-$GITHUB_API_URL/repos/$GITHUB_REPOSITORY/issues/comments}
	COMMENT_METHOD=PATCH
	[ -z "${GITHUB_TOKEN:-}" ] || AUTH_HEADER=${AUTH_HEADER:-Authorization: Bearer $GITHUB_TOKEN}
elif [ -n "${CI_MERGE_REQUEST_IID:-}" ]; then
	BASE=${BASE:-origin/$CI_MERGE_REQUEST_TARGET_BRANCH_NAME}
	COMMENTS_URL=${COMMENTS_URL:-$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes}
	COMMENT_METHOD=PUT
	[ -z "${GITLAB_TOKEN:-}" ] || AUTH_HEADER=${AUTH_HEADER:-PRIVATE-TOKEN: $GITLAB_TOKEN}
fi
: "${BASE:?the revision that the request goes into}"

code=0
"${FLEETWRIGHT:-fleetwright}" diff --from "$BASE" --to "${HEAD:-HEAD}" --merge-base \
	-o text -o markdown=plan.md -o json=plan.json -o html=plan.html "$@" || code=$?
if [ ! -f plan.md ]; then
	exit "$code" # nothing was compared: the message says why
fi

if [ -z "${COMMENTS_URL:-}" ]; then
	echo "not a pull or merge request: no comment" >&2
	exit "$code"
fi

call() { # METHOD URL [FILE]
	curl --silent --show-error --fail-with-body --request "$1" --header "Content-Type: application/json" \
		${AUTH_HEADER:+--header "$AUTH_HEADER"} ${3:+--data "@$3"} "$2"
}

# One comment, however often it runs. Of more than 100 comments, ours is among the first or is made anew.
id=$(call GET "$COMMENTS_URL?per_page=100" | jq -r 'map(select(.body | startswith("<!-- fleetwright diff -->"))) | .[0].id // empty')
body=$(mktemp)
trap 'rm -f "$body"' EXIT
jq --raw-input --slurp '{body: .}' plan.md >"$body"
if [ -n "$id" ]; then
	call "${COMMENT_METHOD:-PATCH}" "${COMMENT_URL:-$COMMENTS_URL}/$id" "$body" >/dev/null
else
	call POST "$COMMENTS_URL" "$body" >/dev/null
fi
exit "$code"
