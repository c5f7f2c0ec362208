"""Pickles that version 0.15.3 of the published package wrote are read: old checkpoints open."""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from typing import Any

import pytest
import torch

from tensordict import LazyStackedTensorDict, MetaData, NonTensorData, NonTensorStack, TensorClass, TensorDict
from tensordict._reductions import _make_td

# Each is the pickle, compressed, in base 85.
PUBLISHED = {
    "dense": (
        "c-qxeOK;Oa5cVrgn>1;K1c)2rf(ufhNuOMh3KS&M04+$qR4d0`x+acY+v}=DsuT{bTC}$=H+}$rjh}$TfmuHq2hsz_T1s|zc4l_w`}W("
        "R_U&F(N<VgsVm}Td$F*q-Mc7Gf>IQzy*)$qheT=BXFF0$Ky}-n3?^DBbFu?vX*I6Bnd{TpKaW+eX$R;h6P}hT;H{gU`;(AW*iw@clt+P"
        "hv7Q<leVb11}7g!GZ7zG2=JEAxSuMJg}q@nV)=KcP@`RnedA8+rphRW7Y75<MyNjK-Ao&6}FfgO1007o(O5z63THekndDfKYIzT;YcsG"
        "ONKFw&!ajAHjQjzjf0)O51~#+U>V4J(FXs<3i>8crFSsfiqczZX^wElJ=^-4qb!C5Muowou!I!s$+Ctc9}K1fTWJT6?v<wElQ?vAwbsW"
        "_j)XBvcKhOGE7)WZMm;NxrhxQl#=Xe9BMwHa8?gIpKzU!p~V9`t@)@Tm4PsVBj%lW?`FC@Mp5mi9#yC3#lH%vd77+PUbcqTnA8JgUe)0"
        "*E%cfoyGPTrc+m7TKEE{Q_}b+=VO7jnvYsOR`T%@dqX|thHA*C{G8m*F^*XkIrzY}G4FyJdKR@wiUVhrv=7d-9kIONf;^FmH9$<raR<n"
        "^25`%Fff>rJ<TRxW*et6vo7$cg!$zYU__+ivY6+shq@t^pL|71hzbiN=I(b-}OCIfVvY4OK^aKBI?P`w5$~1}(DQ7cifT@+5x~z%Z7>z"
        ">sS(5aa>~XTpnwLfGP|NO@suD3?VE3^D8D?U!E7}Gu%Vn|ps0;yyPFAx7<jKFiEM$#z(<aC>vH60@hn&3Zl2@Xr{|`PI1!HKM1VJAK35"
        "AlUvxV!!e74LPz$n^JIJ;SXA`?HQAKGPeABuSf4WN=quX@ejv$f^Ua=SCGJ@qQ><-VXjwe*%1zd~1P{-#}OYIHX;Nesj_o8E%kICkwPQ"
        "9S9c7ffs7K99&wMA#J}tv}kzQw#"
    ),
    "lazy": (
        "c-qyJ-HOvd6vvY^Yu$8Pis+&U;+13t%eGtE^-54#gsfG!UgTyO(q!Bjn`Szh$-*ua>cz?`bGPH258$i$2!fy|X-iww2XG)6=A3`#eEbf"
        "X+FxGSMzPek#ED>OL_^s?DUPyGQkDp<uA@;f#7IW^N~`*+Dh|%iw7PW&TVDp@5Jztd?{n~ic%oh9ASzJIa-Y6bn<AH?h>o;ps0tbcG9*"
        "aQbF9^dWNApWvite*N_*CYzR*WnRhA)zKGrU=RBbg2NK83@1g@Z^1`Ns!wAv~{G*BjK429i*G6xxrqq!8Fw%}t|RcA5*TW|uI)uDhOLh"
        "n*GLW47j1*o3=np&To_~+MyANSvXdwr)dwO)QN!F$3D*RMlE$0?I6WHCC$sen#$69j%0JTa9r#t0`74H9l$`VJW7*%%j{5WF<uw(D<zQ"
        "4p3&zTsJZ2~IST{F-O`IkA`}C%o+0Sq3p(znqI_`EnyH@^=m(YuTR}9d7zH&^+GTZ*^PkZnxdpZFczV-f*1pl4tfLx8J~R$K3dv)(je^"
        "u~^e51sl)s%nO}ApHu~Ejqze=DzDNA!xYVl>>OzcdZEfF!lyLEx<@w2)=mMq3JCL=KuIuy=JrVWQq|@|gG5O1C|Do7Iln48EHwR@<Vus"
        "<`N(|G*+;mRSmY)Q0@<E`o!oWFy{9E8;D5%p-|Xz}?YGykS^vPc&;mAV1=}h*YmSaQSl}TKmsrT790X~Q=2}~^+C+r0A!3=-J@`2k2b$"
        "<!;col}!%K0?"
    ),
    "block": (
        "c-nQ6%We}f6o%)P6ecND6&ICNRw!(uHs!iPst}tI0Sb%RM3&=mYlAb6$DW8HMam{XkasaV9)P!E%_AVO;LHp+A+Y2b`S|nyA0MA(^x<>"
        "h)x%yfG}p4oI57iM(5xhe%UnBq9afW)iwylH&<Ph*BLaXFJi~@&ZsQiNZ$l#BO#Hk?9{}oXCztt;vl<xd0}vVd%DAyh0z7)_v~3HD=d{"
        "_zAhT^`LD=9#NNf&=4VZYzxx_O-cfkZrslnikYuk24=bTVCvaK9XL1^qo*v1oV2t%5`rj3L>&ovT~yo7w$rS<dbFpF4=wHJ<cEB6TmE{"
        "<J436hY4VXwAiyA^n8#4cCD>}svX_SR)t+HR98Dh;phzWZ0b(0mBB`E?}?KYU7^-GM}KhE57OMUyiFId9z2HQ)1=!TVTz`}pu{@5QGld"
        "xK^0=t~ISh4T984m{PYkVX<I(3}<;-bncXq}#9~xG{nvnr9s6DtMR15Hx2qT9-hpaG|1p+Jc~FvM{QZ1ZfB>o*UIpqBN>BWPYl)lBg`f"
        "v!8BNaFep~NPUI)2(o?F#A4;A7XZ0;cz1Ybcx!+E=Iw)np=xBwtW;sr8yOWn1+lU6{>A!u(DVKr%lrSEZsm?0v_Ws>5`X2^wgY7l^k=7"
        "b9v2yf)~(xa<8B-~1N<A9gYU<$`04"
    ),
    "typed": (
        "c-n1J%We}f6rER^G9gjL0>O@DibT{_eb5yWLfwoQpkXl^WO-&x$JF!i*b}u#k-{RVAn#&!d;q`3Cm^xldXhjucrjxipL_1TK6mDQx#wE"
        "#Qg<a05>-visK`i)Dw<p}BDC5X<Gf--FZAvQJ=H_yOHzokPH7^w30ogVs3vKXNLm&UwvBRpNsvq-Pz^R&04e`<3p_I#i&nLZQZk_l(V^"
        "<0jSS|_zS8QpEbAm2p+-^$@^>Iv+)$RTxM*?!LPOPG(gghQ1<`5;u@a}~ZC&OlzJ?xw_0+X3Yvz3R+0U<MKOVgM_VWH{<~;xI!gtE8VY"
        "CAeQq`p_laiqcsRgveZ6HK_xM5UEMi41diVN=CL_UD>x*|x>_e5}a%DrLK0Z?RREqNz!BJ;|$kbEofBF|`)#RcyMUeiF%VbnF`Wy#!1+"
        "7|pXC|r)0pwI1S0G!jqqy5KwN2doTM<>U7e5spM4R-@4l-zp-YHzspKdy~Oj<vaFPxM@$>%a<}xen~P{-k=)FC%LQdoSvgfTb&wcF(m0"
        "zUnX>6ZW_B%WcB2fVh5G7At$P#J}ez>tx$m&usc(Hkg7wim^<x_SHbP?OH2uY>o?UsxtMdJ`4;>X^sk<gMDH1(V&B(EdCu6FE#m;n_w8"
        "sTPP<Iw@9c4hzj&4Lf<q^+++{4N9!!v{!%wPgu*)HO4bl2nt1dJm@FIn"
    ),
    "checkpoint": (
        "c-n1L?Q+vb6t!iCB%-0T<)gHvPztRA)ELJ&xU>aYnidoU$P@%^y2#QFt45Y`q*bOc<C*w}An*)40I$X)FvAb7R&Ha@#6Na)?_S+=&$-9"
        "i(q8J}yH_i3kN@-f_L0VxcJob*&LJv>v%gZQY$UOay*Ol>JV}E%LX`@f1-c0XDMQY9<Ogm9ZQIc)DW7a`mIhCGirNr$!<nIED&j<9#?+"
        "h|ML{I7$E-W`qDLG(#;jS-vi~rPY%2K%s%Fj6ijF=sPx2^@6F=}|gC*S0JV~RZIvcp_oJn6tZK{MacU5?eLLK!XW(;R9HDfzf*fYee;Z"
        "!N>V$PFs;)w>!WDru{g!i)`^vC6Fv!!F+Fq~O6T%5R%IrQ=seI<-t*(;Me_B#8hrrT~^Y@Tm-E-WoIms|Ki@%A<{ESQ=lvG0yqF|`~Yn"
        "$;ZpUw9;M$j6j!B|ayH<=`JJ+W1)F6B`HApeYVc@+=>{&`nd_ilZ@QSGqb5Esk(_h)<1jD?6-@h?*chJ}b#EpKk^p$LE$HIld@0>buet"
        "YKb^HCfTDv$Ct&>$8sFE@s+Xw3C;Xqz#?}*3qN5gFczdNjJ<X4<LhlD$2erEC-}g{$w>}l!B<s9PZj7mwV30Z5x&iy!LYHYnnZClxxLd"
        "voGIPn6JeZHkCOi@@treYU=Fx+)m6hPhoG@`df?o4mi3jWA(~>^KB4>ciM~olPrAielU_PMM9UCFY+iYR?h6I5WLCscp#*B@xL~8BwA|"
        "^MVtEZ0jZ*!tQONzhg74#!Aa4m>OnIl>TJAJEZTuh>%qn^2$HFsYm!FE`@(WQ|<BG&p8$YLl)<@tZ+AlV)i4zvhCr*k};!=)ZbF7T;8!"
        "7p_jq4@+4FzwC-GRHEX1CkIswmBRb8J?t0KQcM-<G&z!=3={*|<9m{6~&^Bituo$HoI*E=9!gI*T)jhn6$<e<FzRr$vQ-*;vcQJqyUcb"
        "1)l^Ci>2agQEEyZjSy49=+n*;KjFNt@w8AB42ekYT9mp(i(3R>nML)m$ixK>A1|j2ct}h)B"
    ),
}


class Sample(TensorClass):
    x: torch.Tensor
    label: str = ""
    extra: torch.Tensor | None = None
    made = 0

    def __post_init__(self) -> None:
        type(self).made += 1


def content(name: str) -> bytes:
    return zlib.decompress(base64.b85decode(PUBLISHED[name]))


def opened(name: str) -> Any:
    return pickle.loads(content(name))


def test_a_tensordict_keeps_all_that_it_had() -> None:
    node = opened("dense")
    assert type(node) is TensorDict and node.batch_size == (2,) and node.names == ["t"] and not node.is_locked
    assert node["a"].tolist() == [0, 1] and node["n", "b"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert type(node.get("s")) is NonTensorData and node["s"] == "text"
    assert type(node.get("l")) is NonTensorStack and node.get("l").tolist() == ["x", "y"]
    assert type(node.get("m")) is MetaData and node["m"] == "meta"
    assert node["u"].shape == (3,) and node[:1]["u"].shape == (3,)
    again = pickle.loads(pickle.dumps(node))
    assert (again == node).all() and again.names == ["t"]


def test_a_lazy_stack_keeps_its_members_and_its_lock() -> None:
    node = opened("lazy")
    assert type(node) is LazyStackedTensorDict and node.is_locked
    assert [len(member["a"]) for member in node.unbind(0)] == [1, 2]


def test_a_consolidated_tensordict_is_in_memory() -> None:
    node = opened("block")
    assert type(node) is TensorDict and node.batch_size == (2,) and node["s"] == "text"
    assert node["a"].tolist() == [0, 1] and node["n", "b"].tolist() == [[1, 1, 1]] * 2
    node["a"].add_(1)
    node["new"] = torch.zeros(2)
    assert node["a"].tolist() == [1, 2]


def test_a_typed_one_keeps_its_fields_and_is_not_initialised_again() -> None:
    before = Sample.made
    node = opened("typed")
    assert type(node) is Sample and node.batch_size == (2,) and Sample.made == before
    assert node.x.tolist() == [0, 1] and node.label == "cat" and node.extra is None
    assert torch.stack([node, node]).batch_size == (2, 2)


@pytest.mark.parametrize("dim, shape", [(0, (3, 2)), (1, (2, 3))])
def test_a_lazy_stack_keeps_its_dim(dim: int, shape: tuple[int, int]) -> None:
    members = [TensorDict({"a": torch.ones(2)}, [2]) for _ in range(3)]
    assert _make_td(LazyStackedTensorDict, {"tensordicts": members, "stack_dim": dim}).batch_size == shape


def test_a_column_keeps_the_dim_of_its_stack() -> None:
    node = NonTensorStack.__new__(NonTensorStack)
    node.__setstate__({"tensordicts": [NonTensorStack("a", "b"), NonTensorStack("c", "d")], "stack_dim": 1})
    assert node.tolist() == [["a", "c"], ["b", "d"]]


def test_the_schema_of_a_lock_is_passed_over() -> None:
    schema = pickle.loads(b"\x80\x02ctensordict.utils\n_LockedSchema\n(K\x01t\x85\x81.")
    state = {"_tensordict": {"a": torch.ones(2)}, "_batch_size": (2,), "_device": None, "_locked_schema": schema}
    assert _make_td(TensorDict, {**state, "_is_locked": True}).is_locked


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_opens_also_where_only_weights_are_allowed(weights_only: bool) -> None:
    found = torch.load(io.BytesIO(content("checkpoint")), weights_only=weights_only)
    assert found["step"] == 3 and found["td"].is_locked and found["td"]["a"].tolist() == [0, 1]
    assert found["td"]["s"] == "text" and type(found["td"].get("l")) is LazyStackedTensorDict
    assert [len(row["l", "b"]) for row in found["td"]] == [1, 2]
