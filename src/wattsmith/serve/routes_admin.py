"""Routes of tokens and of the audit log."""

from starlette.responses import Response

from wattsmith.serve.access import Body, By, Serving
from wattsmith.serve.answering import Limit, Named, Offset, told
from wattsmith.serve.bodies import Entries, NewToken, TokenMade, Tokens, read
from wattsmith.serve.routing import Access, Routes

ROUTES = Routes("admin")
door = ROUTES.door


@door("POST", "/tokens", Access.ADMIN, "Make a token.", takes=NewToken, gives=TokenMade, status=201, fails=(409,))
def add_token(service: Serving, by: By, body: Body) -> Response:
    asked: NewToken = read(NewToken, body)
    token, text = service.add_token(asked.name, asked.role, by)
    return told({"token": token, "text": text}, 201)


@door("GET", "/tokens", Access.ADMIN, "All tokens, without their secrets.", gives=Tokens)
def tokens(service: Serving) -> Response:
    return told({"tokens": service.tokens()})


@door("DELETE", "/tokens/{token}", Access.ADMIN, "Revoke a token.", status=204, fails=(404, 409, 422))
def revoke_token(service: Serving, by: By, token: Named) -> Response:
    service.revoke_token(token, by)
    return Response(status_code=204)


@door("GET", "/audit", Access.ADMIN, "Who changed what, the newest first.", gives=Entries, fails=(422,))
def audit(service: Serving, limit: Limit = 100, offset: Offset = 0) -> Response:
    return told({"entries": service.audit_log(limit=limit, offset=offset)})
